"""Windows of motion sensors are split by people and by recordings, never at random."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from federated.data.loading import load_central, load_device
from federated.data.partitions import Shard, count_kinds, parse
from federated.data.published_sequences import har
from federated.errors import DataError

PUBLISHED = Path(__file__).parents[4] / "shared" / "data"


def write(root: Path, **changes: object) -> None:
    """Write recordings of ten people. Each person has 3 recordings of 4 windows; every value is the
    number of the person, except the first channel, which has the number of the recording.
    """
    people, runs = (
        np.repeat(np.arange(1, 11), 12).astype(np.uint8),
        np.tile(np.repeat([1, 2, 3], 4), 10).astype(np.uint8),
    )
    x = np.repeat(people[:, None, None], 100, 1).repeat(6, 2).astype(np.float32)
    x[:, 0] = runs[:, None]
    arrays = {
        "x": x,
        "y": (runs % 2).astype(np.uint8),
        "subject": people,
        "execution": runs,
        "classes": np.array(["SIT", "WALK"]),
    } | changes
    (root / "har").mkdir(exist_ok=True)
    np.savez(
        root / "har" / "windows100.npz",
        **{key: value for key, value in arrays.items() if value is not None},
    )  # type: ignore[arg-type]


def test_windows_are_channel_first_with_people_and_recordings(tmp_path: Path) -> None:
    write(tmp_path)
    data = har(tmp_path)
    assert (data.x.shape, data.x.dtype, data.outputs) == ((120, 6, 100), np.float32, 2)
    assert data.x[13, 2, :3].tolist() == [1.0, 2.0, 2.0]
    assert (data.users[13], data.sessions[13], data.sessions[-1]) == (2, 2001, 10003)


def test_a_person_is_either_trained_on_or_held_out(tmp_path: Path) -> None:
    write(tmp_path)
    whole = load_central("har", tmp_path)
    trained, held = (set(np.unique(x[:, 0, -1]).tolist()) for x in (whole.x, whole.x_held))
    assert (len(trained), len(held), trained & held) == (8, 2, set())
    assert np.array_equal(whole.x_held, load_central("har", tmp_path).x_held)


@pytest.mark.parametrize("shard", [None, Shard(2, 8, "users", 0)])
def test_a_device_holds_one_person_and_holds_out_the_last_recording(
    tmp_path: Path, shard: Shard | None
) -> None:
    write(tmp_path)
    mine = load_device("har", tmp_path, name="watch", shard=shard)
    assert len(np.unique(mine.x[:, 0, -1])) == 1
    assert (np.unique(mine.x[:, 0, 0]).tolist(), np.unique(mine.x_held[:, 0, 0]).tolist()) == (
        [1.0, 2.0],
        [3.0],
    )
    assert (len(mine.x), len(mine.x_held), len(mine.users), len(mine.sessions)) == (8, 4, 8, 8)


def test_a_device_of_several_people_holds_out_the_last_recording_of_each(tmp_path: Path) -> None:
    write(tmp_path)
    mine = load_device("har", tmp_path, name="watch", shard=Shard(0, 2, "users", 0))
    assert (len(np.unique(mine.x_held[:, 0, -1])), np.unique(mine.x_held[:, 0, 0]).tolist()) == (
        4,
        [3.0],
    )


def test_a_missing_file_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"windows100\.npz does not exist"):
        har(tmp_path)
    write(tmp_path, subject=None)
    with pytest.raises(
        DataError,
        match=r"har: expected an \.npz file of arrays x, y, subject, .*subject is not a file",
    ):
        har(tmp_path)


def test_the_published_windows_have_23_people() -> None:
    if not (PUBLISHED / "har").is_dir():
        pytest.skip("no published windows beside this checkout")
    whole = load_central("har", PUBLISHED)
    assert (len(whole.x) + len(whole.x_held), whole.x.shape[1:], whole.outputs) == (
        9777,
        (6, 100),
        5,
    )
    assert len(np.unique(whole.users)) == 18
    parts = parse("users")(whole, 18, np.random.default_rng(0))
    table = count_kinds(whole, parts)
    assert table.sum() == len(whole.x)
    assert table.min() > 0  # everyone did everything
