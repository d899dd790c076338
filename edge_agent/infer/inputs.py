"""Where the examples to answer for come from: standard input, files of arrays or of JSON, pictures,
folders of them. No torch here.
"""

from __future__ import annotations

import io
import math
import os
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from export.verify import Session
from federated.data.images import COLOUR, GREY
from federated.errors import DataError, MissingExtra

__all__ = [
    "ARRAYS",
    "PICTURES",
    "Numbers",
    "array",
    "listed",
    "parsed",
    "read",
    "shaped",
    "unpacked",
]

Array = npt.NDArray[Any]

ARRAYS = (".json", ".jsonl", ".npy", ".npz")
PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")

_Row = int | float | bool
Numbers = _Row | list[_Row | list[_Row | list[_Row | list[_Row | list[_Row]]]]]
"""What JSON may hold: numbers in lists, five deep at most. A single text among many numbers would
make an array as wide as it for each of them.
"""


def listed(inputs: Sequence[Path]) -> list[Path | None]:
    """The files that inputs name, of a folder all that can be read, by name, those within it too;
    standard input (None) where nothing is named.

    Raises DataError for a folder without any.
    """
    return [file for path in inputs for file in _within(path)] or [None]


def read(path: Path | None, session: Session, *, resize: bool = False) -> Array:
    """Raw examples [n, *inputs] for a session from a file, or from standard input (JSON, or a .npy
    file) when `path` is None.

    An .npz file holds `x`, or one array only; JSON is nested lists, or one example per line. One
    example may come without its first axis. A picture becomes grey or coloured as the network takes
    it; resize: to its size as well, instead of being refused.
    Raises DataError when that cannot be read, or does not fit; MissingExtra for a picture without
    Pillow.
    """
    name = "standard input" if path is None else str(path)
    if path is not None and path.suffix.lower() in PICTURES:
        return shaped(_picture(path, session, resize=resize), session, name)
    try:
        value = _piped(sys.stdin.buffer.read(), name) if path is None else _loaded(path, name)
    except (
        OSError,
        EOFError,
        ValueError,
        MemoryError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        # pickles are ValueErrors
        why = (
            "it holds pickled objects, or no arrays at all"
            if "allow_pickle" in str(error)
            else error
        )
        raise DataError(f"{name}: cannot be read as raw examples: {why}") from error
    return shaped(value, session, name)


def shaped(value: Array, session: Session, name: str) -> Array:
    """The examples in the shape and dtype that a session takes, if no value changes by it. Raises
    DataError.
    """
    if value.shape == session.inputs or (
        session.inputs[0] == 1 and value.shape == session.inputs[1:] and value.ndim
    ):
        value = value[None]
    if session.inputs[0] == 1 and value.ndim and value.shape[1:] == session.inputs[1:]:
        value = value[:, None]
    if value.ndim == 0 or value.shape[1:] != session.inputs:
        raise DataError(
            f"{name}: expected raw examples of shape [n, "
            f"{', '.join(map(str, session.inputs))}], found {list(value.shape)}"
        )
    if value.dtype.kind not in "biuf":
        raise DataError(f"{name}: expected numbers, found {value.dtype}")
    if not np.isfinite(value).all():
        raise DataError(f"{name}: expected finite numbers, found NaN or infinity")
    if session.dtype == np.int64 and not (value == np.floor(value)).all():
        raise DataError(f"{name}: expected ids of tokens, which are whole numbers, found others")
    if (
        session.dtype == np.uint8
        and value.size
        and not ((value >= 0) & (value <= 255) & (value == np.floor(value))).all()
    ):
        raise DataError(
            f"{name}: expected whole numbers from 0 to 255 as in the data it was "
            f"trained on, found {value.min():g} to {value.max():g}"
        )
    with np.errstate(over="ignore"):
        fitting = np.ascontiguousarray(value, session.dtype)
    if not np.isfinite(fitting).all():
        raise DataError(
            f"{name}: expected numbers that {session.dtype} can hold, found up to "
            f"{np.abs(value).max():g}"
        )
    return fitting


def parsed(text: bytes, name: str) -> Array:
    """The array that JSON spells as nested lists of one shape, or one example per line. Raises
    DataError.
    """
    try:
        return array(msgspec.json.decode(text, type=Numbers), name)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        rows = [line for line in text.splitlines() if line.strip()]
        if len(rows) < 2:
            raise DataError(f"{name}: cannot be read as raw examples: {error}") from error
    try:
        return array([msgspec.json.decode(row, type=Numbers) for row in rows], name)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{name}: cannot be read as raw examples, neither as a whole nor line by line: {error}"
        ) from error


def array(value: Numbers, name: str) -> Array:
    """The array that nested lists spell. Raises DataError for lists of different lengths."""
    try:
        return np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise DataError(
            f"{name}: expected lists of one shape, found some of other lengths than others"
        ) from error


def unpacked(data: bytes, name: str) -> Array:
    """The array of a .npy file in memory, which may come from anyone: no pickles, and no more
    memory than it has bytes. Raises DataError.
    """
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = header(file)
    except Exception as error:  # of the parsers of Python, which find many words for what is none
        raise DataError(
            f"{name}: expected a .npy file, found one that cannot be read: "
            f"{' '.join(str(error).split())[:200]}"
        ) from error
    size, found = math.prod(shape) * dtype.itemsize, len(data) - file.tell()
    if dtype.hasobject or size != found:
        what = "pickled objects" if dtype.hasobject else f"{found} bytes"
        raise DataError(
            f"{name}: expected {size} bytes of {list(shape)} as its header says, found {what}"
        )
    try:
        return np.frombuffer(data, dtype, offset=file.tell()).reshape(
            shape, order="F" if fortran else "C"
        )
    except (ValueError, TypeError) as error:
        # sizes that are none, too many axes, elements of no bytes
        raise DataError(
            f"{name}: expected a .npy file of numbers, found {dtype} {str(shape)[:100]}: {error}"
        ) from error


def _within(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    files = sorted(Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    chosen = [
        file
        for file in files
        if file.suffix.lower() in ARRAYS + PICTURES and not file.name.startswith(".")
    ]
    if not chosen:
        raise DataError(
            f"{path}: expected files of {', '.join(ARRAYS + PICTURES)} in the folder, found none"
        )
    yield from chosen


def _piped(data: bytes, name: str) -> Array:
    return (
        unpacked(data, name) if data.startswith(np.lib.format.MAGIC_PREFIX) else parsed(data, name)
    )


def _loaded(path: Path, name: str) -> Array:
    suffix = path.suffix.lower()
    if suffix in (".json", ".jsonl"):
        return parsed(path.read_bytes(), name)
    if suffix == ".npy":
        return unpacked(path.read_bytes(), name)
    if suffix != ".npz":
        raise DataError(
            f"{name}: expected a file of {', '.join(ARRAYS)}, or a picture ({', '.join(PICTURES)})"
        )
    with path.open("rb") as file:
        found = np.load(file, allow_pickle=False)
        if isinstance(found, np.ndarray):  # a .npy file under another name
            return found
        key = "x" if "x" in found else found.files[0] if len(found.files) == 1 else None
        if key is None:
            raise DataError(
                f"{name}: expected an array 'x', or one array only, found "
                f"{', '.join(found.files) or 'none'}"
            )
        return np.asarray(found[key])


def _picture(path: Path, session: Session, *, resize: bool) -> Array:
    """One picture, uint8 [channels, height, width]."""
    if len(session.inputs) != 3 or session.inputs[0] not in (1, 3) or session.dtype != np.uint8:
        raise DataError(
            f"{path}: a picture, where the network takes {session.dtype} {list(session.inputs)}"
        )
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise MissingExtra(f"reading {path}", "data", "pillow") from error
    channels, height, width = session.inputs
    try:
        with Image.open(path) as opened:
            if (found := opened.size) != (width, height) and not resize:
                raise DataError(
                    f"{path}: expected a picture of {width}x{height}, found "
                    f"{found[0]}x{found[1]}; --resize scales it"
                )
            if opened.mode not in GREY + COLOUR:
                raise DataError(
                    f"{path}: expected a picture of 8 bits in grey or colour, found one "
                    f"of mode {opened.mode}"
                )
            opened.info.pop("transparency", None)  # of a palette, of which Pillow would warn
            picture = opened.convert("L" if channels == 1 else "RGB").resize((width, height))
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path}: expected a picture, found one that cannot be read: {error}"
        ) from error
    pixels = np.asarray(picture)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
