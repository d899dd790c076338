"""Read images from a folder or a `.zip` as a data set: `CLASS/FILE`, or `train/CLASS/FILE` with
`test/CLASS/FILE`.

Classes are the sorted folder names. Empty folders count, so that devices without a class number the
others alike. Without `test`, the folder `valid` or `val` is held out; with it, they are ignored.
Hidden files, and files beside the class folders, are ignored.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from federated.data.dataset import Dataset
from federated.errors import DataError, require_extra

__all__ = ["COLOUR", "GREY", "read_folder", "read_zip"]

Pixels = npt.NDArray[np.uint8]
Place = tuple[str, ...]  # a path within the folder, by its parts
Open = Callable[[Place], IO[bytes]]

HELD = ("test", "valid", "val")  # the first one that exists is held out
# errors for damaged files
UNREADABLE = (
    OSError,
    EOFError,
    RuntimeError,
    SyntaxError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
# Pillow's names of 8-bit images
GREY, COLOUR = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")


def read_folder(path: Path) -> Dataset:
    """Return the images of a folder, uint8 [n, 1 or 3, height, width]. DataError names the first
    unusable file. MissingExtra: Pillow is not installed.
    """
    files, folders = list[Place](), list[Place]()
    for folder, inside, names in os.walk(path, followlinks=True):
        at = Path(folder).relative_to(path).parts
        folders += [(*at, name) for name in inside]
        files += [(*at, name) for name in names]
    return _read(
        path.resolve().name, files, folders, lambda place: path.joinpath(*place).open("rb")
    )


def read_zip(path: Path) -> Dataset:
    """Return the images of a folder in a `.zip`, read in one pass without unpacking. DataError,
    MissingExtra: as in `read_folder`.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            # archives made on Windows can contain backslashes
            names = {
                tuple(name.replace("\\", "/").strip("/").split("/")): name
                for name in archive.namelist()
            }
            files = [place for place, name in names.items() if not name.endswith(("/", "\\"))]
            folders = [place for place, name in names.items() if name.endswith(("/", "\\"))]
            return _read(path.name, files, folders, lambda place: archive.open(names[place]))
    except FileNotFoundError:
        raise DataError(f"data '{path}': no such file") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"data '{path}': expected a .zip of a folder of images: {error}") from error


def _read(name: str, files: Collection[Place], folders: Collection[Place], open_: Open) -> Dataset:
    files, folders = sorted(filter(_is_visible, files)), sorted(filter(_is_visible, folders))
    found = [_group_by_class(name, part, files, folders) for part in _find_parts(files)]
    if not any(found[0].values()):
        raise DataError(
            f"data '{name}': expected images as CLASS/FILE or train/CLASS/FILE, found none"
        )
    labels = {label: i for i, label in enumerate(sorted(set[str]().union(*found)))}
    places = [place for classes in found for inside in classes.values() for place in inside]
    x, y = (
        _read_pixels(name, places, open_),
        np.array([labels[place[-2]] for place in places], np.int64),
    )
    n = sum(map(len, found[0].values()))
    names = tuple(labels) if len(labels) > 1 else ()
    return Dataset(name, x[:n], y[:n], x[n:], y[n:], max(2, len(labels)), classes=names)


def _is_visible(place: Place) -> bool:
    """Return False for hidden files and those of macOS archives."""
    return not any(part.startswith(".") or part == "__MACOSX" for part in place)


def _find_parts(files: Collection[Place]) -> list[Place]:
    """Return the paths of the class folders: below the single top folder, if any, the training part
    and the held-out part.
    """
    base: Place = ()
    while True:
        tops = {place[len(base)] for place in files if len(place) > len(base) + 1}
        if "train" in tops and tops <= {"train", *HELD}:
            return [(*base, "train"), *[(*base, held) for held in HELD if held in tops][:1]]
        if len(tops) != 1 or all(len(place) <= len(base) + 2 for place in files):
            return [base]
        base = (*base, *tops)


def _group_by_class(
    name: str, part: Place, files: Collection[Place], folders: Collection[Place]
) -> dict[str, list[Place]]:
    """Return the files by class, both sorted."""
    n = len(part)
    classes: dict[str, list[Place]] = {
        place[n]: [] for place in folders if place[:n] == part and len(place) == n + 1
    }
    for place in files:
        if place[:n] == part and len(place) > n + 1:
            if len(place) > n + 2:
                raise DataError(
                    f"data '{name}': expected {'/'.join((*part, 'CLASS', 'FILE'))}, "
                    f"found {'/'.join(place)}"
                )
            classes.setdefault(place[n], []).append(place)
    return dict(sorted(classes.items()))


def _read_pixels(name: str, places: Collection[Place], open_: Open) -> Pixels:
    """Return all images, [n, channels, height, width], in colour if one of them is."""
    x = np.empty((len(places), 0, 0, 0), np.uint8)
    for i, place in enumerate(places):
        image = _decode(name, place, open_)
        if i == 0:
            x, first = np.empty((len(places), *image.shape), np.uint8), place
        if image.shape[1:] != x.shape[2:]:
            (h, w), (height, width) = x.shape[2:], image.shape[1:]
            raise DataError(
                f"data '{name}': expected images of one size, {w}x{h} like "
                f"{'/'.join(first)}, found {width}x{height} in {'/'.join(place)}"
            )
        if len(image) > x.shape[1]:
            x = np.repeat(x, len(image), axis=1)
        x[i] = image
    return x


def _decode(name: str, place: Place, open_: Open) -> Pixels:
    """Return one image, [1 or 3, height, width], without transparency."""
    with require_extra(f"reading the images of {name}", "data", "pillow"):
        from PIL import Image, UnidentifiedImageError
    try:
        with open_(place) as file, Image.open(file) as image:
            if image.mode not in GREY + COLOUR:
                raise DataError(
                    f"data '{name}': expected images of 8 bits in grey or colour, "
                    f"found {'/'.join(place)} of mode {image.mode}"
                )
            image.info.pop("transparency", None)  # Pillow warns about it in palettes
            array = np.asarray(image.convert("L" if image.mode in GREY else "RGB"))
    except (*UNREADABLE, Image.DecompressionBombError) as error:
        why = (  # Pillow's text shows Python's file object
            "it is no image, or damaged" if isinstance(error, UnidentifiedImageError) else error
        )
        raise DataError(f"data '{name}': cannot read the image {'/'.join(place)}: {why}") from error
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
