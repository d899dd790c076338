"""MNIST and Fashion-MNIST come from torchvision's own loaders, from a cache or with a clear reason why not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from federated.data.catalogue import central, device
from federated.data.partitions import Shard
from federated.errors import DataError

pytest.importorskip("torch")
PUBLISHED = Path(__file__).parents[4] / "shared" / "data"


def cache(loader: str, root: Path) -> None:
    source = PUBLISHED / loader / "raw"
    if not source.is_dir():
        pytest.skip(f"no published {loader} files beside this checkout")
    shutil.copytree(source, root / loader / "raw", copy_function=shutil.copyfile)
    (root / loader / "raw").chmod(0o755)  # a read-only source gives a read-only copy
    (root / loader).chmod(0o755)


@pytest.mark.parametrize(
    ("name", "loader", "mean", "std"),
    [("mnist", "MNIST", 0.1307, 0.3081), ("fashion-mnist", "FashionMNIST", 0.2860, 0.3530)],
)
def test_published_pictures_have_the_published_moments(tmp_path: Path, name: str, loader: str, mean: float, std: float) -> None:
    cache(loader, tmp_path)
    whole = central(name, tmp_path)
    assert (whole.x.shape, whole.x_held.shape, whole.x.dtype, whole.outputs) == ((60000, 1, 28, 28), (10000, 1, 28, 28), np.uint8, 10)
    card = whole.card()
    assert card.mean[0] / 255 == pytest.approx(mean, abs=1e-4)
    assert card.std[0] / 255 == pytest.approx(std, abs=1e-4)
    agent = device(name, tmp_path, name="pi", shard=Shard(0, 100))
    assert (len(agent.x), len(agent.x_held)) == (480, 120)


def test_without_a_cache_and_a_network_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # nobody listens there: no request leaves this machine
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(DataError, match=r"mnist: neither in .*raw nor to be downloaded .*--data-root"):
        central("mnist", tmp_path)


def test_a_damaged_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache("MNIST", tmp_path)
    labels = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    labels.chmod(0o644)
    labels.write_bytes(labels.read_bytes()[:-4] + b"\0\0\0\0")
    for variable in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    with pytest.raises(DataError, match="mnist: neither in"):
        central("mnist", tmp_path)
