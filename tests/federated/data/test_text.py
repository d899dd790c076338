"""WikiText-2 becomes windows in which each token is the target of the previous ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from federated.data.loading import load_central, load_device
from federated.data.partitions import Shard
from federated.data.published_sequences import wikitext_2
from federated.errors import DataError

PUBLISHED = Path(__file__).parents[4] / "shared" / "data"


def write(root: Path, *, names: str = "{}.txt", **parts: str) -> None:
    (root / "wikitext-2").mkdir(exist_ok=True)
    for part, text in parts.items():
        (root / "wikitext-2" / names.format(part)).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("names", ["{}.txt", "wiki.{}.tokens"])
def test_windows_follow_each_other_and_their_targets_are_one_on(tmp_path: Path, names: str) -> None:
    write(
        tmp_path,
        names=names,
        train=" a b\n \n" + "c " * 62 + "\n" + "ö " * 64,
        valid="v\n",
        test="a w " * 40,
    )
    data = wikitext_2(tmp_path)
    words = ["a", "b", "<eos>", "c", "ö", "v", "w"]  # in the order of their first appearance
    assert (data.outputs, data.target, data.x.dtype) == (len(words), "token", np.int64)
    # 132 tokens, the last window of which has no next
    assert (data.x.shape, data.y.shape, data.x_held.shape) == ((2, 64), (2, 64), (1, 64))
    stream = [0, 1, 2, 2, *[3] * 62, 2, *[4] * 64, 2]
    assert data.x.reshape(-1).tolist() == stream[:128]
    assert data.y.reshape(-1).tolist() == stream[1:129]
    assert data.x_held[0, :3].tolist() == [0, 6, 0]


def test_a_missing_part_and_other_bytes_are_named(tmp_path: Path) -> None:
    write(tmp_path, train="a " * 65, test="b " * 65)
    with pytest.raises(
        DataError, match=r"expected valid\.txt or wiki\.valid\.tokens in .*--data-root"
    ):
        wikitext_2(tmp_path)
    (tmp_path / "wikitext-2" / "valid.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"expected UTF-8 text in .*valid"):
        wikitext_2(tmp_path)


def test_published_text_has_the_published_vocabulary() -> None:
    if not (PUBLISHED / "wikitext-2").is_dir():
        pytest.skip("no published wikitext-2 beside this checkout")
    whole = load_central("wikitext-2", PUBLISHED)
    assert (whole.outputs, len(whole.x), len(whole.x_held)) == (33278, 2088627 // 64, 245568 // 64)
    card = whole.card()
    assert (card.inputs, card.dtype, card.mean, card.std, card.target, card.shift) == (
        (64,),
        "int64",
        (0.0,),
        (1.0,),
        "token",
        (),
    )
    agent = load_device("wikitext-2", PUBLISHED, name="pi", shard=Shard(3, 100, "iid", 0))
    assert (len(agent.x) + len(agent.x_held), agent.outputs) == (327, 33278)
