"""Load published image data sets with torchvision, which is imported only when needed, and
CINIC-10, which torchvision lacks.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import numpy as np

from federated.data.dataset import PUBLISHED, Array, BuiltIn, Dataset, Labels
from federated.data.download_progress import report_downloads
from federated.data.image_folders import read_folder
from federated.errors import DataError, require_extra
from models.optional_torchvision import import_torchvision

__all__ = ["CIFAR10", "CIFAR100", "CINIC10", "FASHION_MNIST", "MNIST", "SVHN"]

CINIC = "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz"
CINIC_MD5 = "6ee4d0c996905fe93221de577967a372"
# arguments of most of torchvision's loaders for their two parts
BY_TRAIN = ({"train": True}, {"train": False})


def mnist(root: Path) -> Dataset:
    """Return 60,000 and 10,000 handwritten digits, uint8 [1, 28, 28] (LeCun, Cortes and Burges
    1998). DataError, MissingExtra.
    """
    return _load("mnist", "MNIST", root, root / "MNIST" / "raw", "its four -ubyte.gz files")


MNIST = BuiltIn(mnist, "handwritten digits, 28 x 28; downloaded", PUBLISHED)


def fashion_mnist(root: Path) -> Dataset:
    """Return 60,000 and 10,000 images of clothes, uint8 [1, 28, 28] (Xiao et al. 2017,
    arXiv:1708.07747; MIT). DataError, MissingExtra.
    """
    return _load(
        "fashion-mnist",
        "FashionMNIST",
        root,
        root / "FashionMNIST" / "raw",
        "its four -ubyte.gz files",
    )


FASHION_MNIST = BuiltIn(fashion_mnist, "images of clothes, 28 x 28; downloaded", PUBLISHED)


def cifar10(root: Path) -> Dataset:
    """Return 50,000 and 10,000 images of ten classes, uint8 [3, 32, 32] (Krizhevsky 2009).
    DataError, MissingExtra.
    """
    return _load("cifar10", "CIFAR10", root, root, "cifar-10-python.tar.gz")


CIFAR10 = BuiltIn(cifar10, "images of ten classes, 32 x 32; downloaded", PUBLISHED)


def cifar100(root: Path) -> Dataset:
    """Return 50,000 and 10,000 images of a hundred classes, uint8 [3, 32, 32] (Krizhevsky 2009).
    DataError, MissingExtra.
    """
    return _load("cifar100", "CIFAR100", root, root, "cifar-100-python.tar.gz")


CIFAR100 = BuiltIn(cifar100, "images of a hundred classes, 32 x 32; downloaded", PUBLISHED)


def svhn(root: Path) -> Dataset:
    """Return 73,257 and 26,032 house numbers, uint8 [3, 32, 32], 0 to 9 (Netzer et al. 2011),
    without the extra part. DataError, MissingExtra.
    """
    with require_extra("the data set svhn", "data"):
        import scipy.io  # noqa: F401  # torchvision would import it only after the download
    kinds = ({"split": "train"}, {"split": "test"})
    return _load(
        "svhn", "SVHN", root / "SVHN", root / "SVHN", "train_32x32.mat and test_32x32.mat", kinds
    )


SVHN = BuiltIn(
    svhn, "images of house numbers, 32 x 32; downloaded; needs the extra `data`", PUBLISHED
)


def cinic10(root: Path) -> Dataset:
    """Return 90,000 and 90,000 images of CIFAR-10's ten classes, uint8 [3, 32, 32], without the
    validation part.

    Darlow et al. 2018, arXiv:1810.03505, doi 10.7488/ds/2448; CC BY 4.0. DataError, MissingExtra.
    """
    folder = root / "CINIC-10"
    if not _is_unpacked(folder):
        utils = _import_torchvision("cinic10", "datasets.utils")
        with _lock_download("cinic10", root, root, "CINIC-10.tar.gz, or its folder CINIC-10,"):
            if not _is_unpacked(folder):
                with report_downloads(utils):
                    utils.download_url(CINIC, str(root), "CINIC-10.tar.gz", CINIC_MD5)
                _unpack(root / "CINIC-10.tar.gz", folder)
    return replace(read_folder(folder), name="cinic10")


CINIC10 = BuiltIn(cinic10, "images of CIFAR-10's classes, 32 x 32; downloaded", PUBLISHED)


def _is_unpacked(folder: Path) -> bool:
    return all((folder / part).is_dir() for part in ("train", "test"))


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive completely or not at all."""
    with (
        tempfile.TemporaryDirectory(dir=archive.parent, prefix=".cinic10-") as staging,
        tarfile.open(archive) as tar,
    ):
        unpacked = Path(staging) / "all"
        if hasattr(tarfile, "data_filter"):
            tar.extractall(unpacked, filter="data")
        else:  # Python before 3.11.4, as in Debian 12 and Raspberry Pi OS
            members = [member for member in tar if _is_harmless(member)]
            tar.extractall(unpacked, members=members)  # noqa: S202  # nosec B202
        (unpacked / folder.name if (unpacked / folder.name).is_dir() else unpacked).rename(folder)


def _is_harmless(member: tarfile.TarInfo) -> bool:
    """Return True for a plain file or folder that unpacks below its target folder."""
    path = PurePosixPath(member.name)
    return (member.isfile() or member.isdir()) and not path.is_absolute() and ".." not in path.parts


def _load(
    name: str,
    loader: str,
    root: Path,
    place: Path,
    files: str,
    kinds: Sequence[Mapping[str, Any]] = BY_TRAIN,
) -> Dataset:
    datasets = _import_torchvision(name, "datasets")
    with _lock_download(name, root, place, files), warnings.catch_warnings():
        # numpy warns about pickles as old as CIFAR's
        warnings.filterwarnings("ignore", message=r"dtype\(\): align should be")
        with report_downloads(datasets.utils):
            parts = [getattr(datasets, loader)(str(root), download=True, **kind) for kind in kinds]
    (x, y), (x_held, y_held) = (_read_arrays(part) for part in parts)
    classes = tuple(map(str, getattr(parts[0], "classes", range(10))))
    return Dataset(name, x, y, x_held, y_held, len(classes), classes=classes)


@contextmanager
def _lock_download(name: str, root: Path, place: Path, files: str) -> Iterator[None]:
    """Lock a data set while it is downloaded and unpacked, since agents of one machine start at
    once. On a read-only disk, only read existing files.

    DataError: any failure.
    """
    from filelock import FileLock

    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{name}.lock") if os.access(root, os.W_OK) else nullcontext():
            yield
    except (OSError, RuntimeError, ValueError, tarfile.TarError) as error:
        raise DataError(
            f"{name}: not found in {place}, and the download failed "
            f"({' '.join(str(error).split())}); connect this machine once, copy {files} there, "
            "or choose another folder with --data-root or data.root"
        ) from error


def _read_arrays(part: Any) -> tuple[Array, Labels]:
    """Return channel-first arrays, from the arrays, tensors and axis orders of the loaders."""
    x = np.asarray(part.data)
    y = np.asarray(part.targets if hasattr(part, "targets") else part.labels)
    x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2) if x.shape[-1] == 3 else x
    return np.ascontiguousarray(x), y.astype(np.int64, copy=False)


def _import_torchvision(name: str, part: str) -> ModuleType:
    with require_extra(f"the data set {name}", "train"):
        return import_torchvision(part)
