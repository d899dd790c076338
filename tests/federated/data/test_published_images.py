"""Published images come from torchvision's own loaders, from a cache or with a clear reason why
not.

Where the published files are not at hand, small ones of the same format stand for them, with sums
of their own.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated.data import published_images
from federated.data.loading import load_central, load_device
from federated.data.partitions import Shard
from federated.errors import DataError, MissingExtra
from models.optional_torchvision import import_torchvision

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
def test_published_pictures_have_the_published_moments(
    tmp_path: Path, name: str, loader: str, mean: float, std: float
) -> None:
    cache(loader, tmp_path)
    whole = load_central(name, tmp_path)
    assert (whole.x.shape, whole.x_held.shape, whole.x.dtype, whole.outputs) == (
        (60000, 1, 28, 28),
        (10000, 1, 28, 28),
        np.uint8,
        10,
    )
    assert len(whole.classes) == 10
    card = whole.card()
    assert card.mean[0] / 255 == pytest.approx(mean, abs=1e-4)
    assert card.std[0] / 255 == pytest.approx(std, abs=1e-4)
    agent = load_device(name, tmp_path, name="pi", shard=Shard(0, 100, "iid", 0))
    assert (len(agent.x), len(agent.x_held)) == (480, 120)


def test_a_folder_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    cache("FashionMNIST", tmp_path)
    load_central("fashion-mnist", tmp_path)  # unpacks
    for lock in tmp_path.glob(".*.lock"):
        lock.unlink()
    tmp_path.chmod(0o555)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user may write anywhere")
        assert len(load_central("fashion-mnist", tmp_path).x) == 60000
    finally:
        tmp_path.chmod(0o755)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    # made at the first request of a process, with the proxies of that moment, and kept
    monkeypatch.setattr(urllib.request, "_opener", None)
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        # no process listens there, so no request leaves this machine
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)


class Old:
    """An array as the pickles of CIFAR hold it, of a numpy that wrote flags as numbers."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __reduce__(self) -> tuple[Any, ...]:
        reconstruct, (_, shape, code), (version, size, _, order, data) = np.ascontiguousarray(
            self.array
        ).__reduce__()
        return reconstruct, (np.ndarray, shape, code), (version, size, OldType(), order, data)


class OldType:
    def __reduce__(self) -> tuple[Any, ...]:
        return np.dtype, ("u1", 0, 1), (3, "|", None, None, None, -1, -1, 0)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def pickled(folder: Path, files: dict[str, Any]) -> dict[str, str]:
    folder.mkdir(parents=True)
    for name, value in files.items():
        (folder / name).write_bytes(pickle.dumps(value, protocol=2))
    return {name: md5(folder / name) for name in files}


def images(n: int, start: int = 0) -> np.ndarray:
    """Return uint8 [n, 3, 32, 32], different in every place."""
    return (np.arange(start, start + n * 3072) % 251).astype(np.uint8).reshape(n, 3, 32, 32)


@pytest.mark.parametrize(
    ("name", "key", "classes"), [("cifar10", "labels", 10), ("cifar100", "fine_labels", 100)]
)
def test_batches_of_cifar_become_pictures_channel_first(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    offline: None,
    name: str,
    key: str,
    classes: int,
) -> None:
    loader = getattr(import_torchvision("datasets"), name.upper())
    names = [file for file, _ in loader.train_list + loader.test_list]
    x, y = images(2 * len(names)), [(7 * i) % classes for i in range(2 * len(names))]
    files = {
        file: {"data": Old(x[2 * i : 2 * i + 2].reshape(2, -1)), key: y[2 * i : 2 * i + 2]}
        for i, file in enumerate(names)
    }
    meta = {loader.meta["key"]: [f"class {i}" for i in range(classes)]}
    sums = pickled(tmp_path / loader.base_folder, {**files, loader.meta["filename"]: meta})
    monkeypatch.setattr(loader, "train_list", [[file, sums[file]] for file in names[:-1]])
    monkeypatch.setattr(loader, "test_list", [[names[-1], sums[names[-1]]]])
    monkeypatch.setattr(loader, "meta", loader.meta | {"md5": sums[loader.meta["filename"]]})
    data = load_central(name, tmp_path)
    assert (data.name, data.outputs, data.x.dtype, data.x.flags["C_CONTIGUOUS"]) == (
        name,
        classes,
        np.uint8,
        True,
    )
    assert np.array_equal(np.concatenate([data.x, data.x_held]), x)
    assert (data.y.tolist(), data.y_held.tolist()) == (y[:-2], y[-2:])


def test_house_numbers_become_pictures_channel_first_and_ten_is_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: None
) -> None:
    savemat = pytest.importorskip("scipy.io").savemat
    loader, split = import_torchvision("datasets").SVHN, {}
    (tmp_path / "SVHN").mkdir()
    for part, y, start in (("train", [10, 1, 9], 0), ("test", [2, 10], 5)):
        path = tmp_path / "SVHN" / f"{part}_32x32.mat"
        savemat(
            path,
            {
                "X": images(len(y), start).transpose(2, 3, 1, 0),
                "y": np.array(y, np.uint8)[:, None],
            },
        )
        split[part] = ["http://127.0.0.1:9/", path.name, md5(path)]
    monkeypatch.setattr(loader, "split_list", split)
    data = load_central("svhn", tmp_path)
    assert (data.outputs, data.y.tolist(), data.y_held.tolist()) == (10, [0, 1, 9], [2, 0])
    assert np.array_equal(data.x, images(3))
    assert np.array_equal(data.x_held, images(2, 5))


def test_house_numbers_without_scipy_name_the_extra_before_any_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.delitem(sys.modules, "scipy.io", raising=False)
    with pytest.raises(MissingExtra, match=r"'scipy'.*pip install .*\[data\]'"):
        load_central("svhn", tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("inside", ["", "CINIC-10/"])
def test_cinic_10_is_unpacked_once_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: None, inside: str
) -> None:
    from PIL import Image

    archive = tmp_path / "CINIC-10.tar.gz"
    for i, part in enumerate(("train", "valid", "test")):
        for j, label in enumerate(("airplane", "truck")):
            folder = tmp_path / "source" / part / label
            folder.mkdir(parents=True)
            Image.fromarray(images(1, 10 * i + j)[0].transpose(1, 2, 0)).save(folder / "n1.png")
    with tarfile.open(archive, "w:gz") as tar:
        for part in ("train", "valid", "test"):
            tar.add(tmp_path / "source" / part, f"{inside}{part}")
    monkeypatch.setattr(published_images, "CINIC_MD5", md5(archive))
    data = load_central("cinic10", tmp_path)
    assert (data.name, data.outputs, data.y.tolist(), data.y_held.tolist()) == (
        "cinic10",
        2,
        [0, 1],
        [0, 1],
    )
    assert np.array_equal(data.x[1], images(1, 1)[0])
    assert np.array_equal(data.x_held[0], images(1, 20)[0])
    archive.unlink()
    assert np.array_equal(load_central("cinic10", tmp_path).x, data.x)
    assert not list(tmp_path.glob(".cinic10-*"))


@pytest.mark.parametrize("name", ["/etc/away", "../away", "a/../../away"])
def test_without_pythons_filter_nothing_is_unpacked_outside_the_folder(name: str) -> None:
    """Python 3.11.2, which Debian 12 has, knows no filter."""
    assert published_images._is_harmless(tarfile.TarInfo("train/cat/1.png"))
    assert not published_images._is_harmless(tarfile.TarInfo(name))
    link = tarfile.TarInfo("train/link")
    link.type = tarfile.SYMTYPE
    assert not published_images._is_harmless(link)


@pytest.mark.parametrize(
    ("name", "place", "files"),
    [
        ("mnist", "MNIST/raw", "four -ubyte.gz files"),
        ("cifar100", "", "cifar-100-python.tar.gz"),
        ("svhn", "SVHN", "train_32x32.mat and test_32x32.mat"),
        ("cinic10", "", "CINIC-10.tar.gz, or its folder CINIC-10,"),
    ],
)
def test_without_a_cache_and_a_network_the_error_gives_a_remedy(
    tmp_path: Path, offline: None, name: str, place: str, files: str
) -> None:
    with pytest.raises(
        DataError,
        match=rf"{name}: not found in .*{place}.*download failed.*{files}.*--data-root",
    ):
        load_central(name, tmp_path)


def test_a_damaged_file_is_not_read(tmp_path: Path, offline: None) -> None:
    cache("MNIST", tmp_path)
    labels = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    labels.chmod(0o644)
    labels.write_bytes(labels.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(DataError, match="mnist: not found in"):
        load_central("mnist", tmp_path)
