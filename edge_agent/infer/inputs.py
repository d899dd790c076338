"""Read input examples from standard input, array or JSON files, images, and folders of them.
Does not import torch.
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

from export.onnx_session import Session
from federated.data.image_folders import COLOUR, GREY
from federated.errors import DataError, require_extra

__all__ = [
    "Numbers",
    "fit_shape",
    "list_inputs",
    "parse_json",
    "parse_npy",
    "read_examples",
    "to_array",
]

Array = npt.NDArray[Any]

ARRAYS = (".json", ".jsonl", ".npy", ".npz")
MAX_HEADER = 1 << 16  # bytes of a .npy file to look for its header in
IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")

_Row = int | float | bool
Numbers = _Row | list[_Row | list[_Row | list[_Row | list[_Row | list[_Row]]]]]
"""Accepted JSON: numbers in lists nested up to five deep. Texts are rejected, since one long
text among numbers would make NumPy use its width for every element.
"""


def list_inputs(inputs: Sequence[Path]) -> list[Path | None]:
    """Return the input files, with folders replaced by all readable files in them, sorted by
    name; standard input (None) without inputs.

    DataError: a path does not exist, or a folder has no readable files.
    """
    return [file for path in inputs for file in _list_files(path)] or [None]


def read_examples(path: Path | None, session: Session, *, resize: bool = False) -> Array:
    """Read raw examples [n, *inputs] for a session from a file, or from standard input (JSON or
    .npy) if `path` is None.

    An .npz file must hold `x` or exactly one array. JSON is nested lists, or one example per line.
    A single example may lack the first axis. An image is converted to grey or colour as the
    network requires.

    resize: scale images to the network's size instead of rejecting them
    DataError: the input cannot be read or does not fit. MissingExtra: Pillow is not installed.
    """
    name = "standard input" if path is None else str(path)
    if path is not None and path.suffix.lower() in IMAGE_SUFFIXES:
        return fit_shape(_read_image(path, session, resize=resize), session, name)
    try:
        value = (
            _parse_bytes(sys.stdin.buffer.read(), name) if path is None else _read_file(path, name)
        )
    except (
        OSError,
        EOFError,
        ValueError,
        MemoryError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        # pickles raise ValueErrors
        why = (
            "it is damaged, or contains pickled objects, which are not supported"
            if "allow_pickle" in str(error)
            else error
        )
        if isinstance(error, OSError) and error.strerror:
            why = error.strerror
        raise DataError(f"{name}: cannot be read as raw examples: {why}") from error
    return fit_shape(value, session, name)


def fit_shape(value: Array, session: Session, name: str, most: int | None = None) -> Array:
    """Convert examples to a session's shape and dtype if that changes no value.

    most: largest accepted number of examples
    DataError: the examples do not fit.
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
    if most is not None and len(value) > most:
        raise DataError(f"{name}: expected at most {most} examples at a time, found {len(value)}")
    if value.dtype.kind not in "biuf":
        raise DataError(f"{name}: expected numbers, found {value.dtype}")
    if not np.isfinite(value).all():
        raise DataError(f"{name}: expected finite numbers, found NaN or infinity")
    if session.dtype == np.int64 and not (value == np.floor(value)).all():
        raise DataError(f"{name}: expected token ids, which are whole numbers, found fractions")
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


def parse_json(text: bytes, name: str) -> Array:
    """Parse JSON: nested lists of one shape, or one example per line. Raises DataError."""
    if not text.strip():
        raise DataError(f"{name}: expected raw examples as JSON, found nothing")
    try:
        return to_array(msgspec.json.decode(text, type=Numbers), name)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        rows = [line for line in text.splitlines() if line.strip()]
        if len(rows) < 2:
            valid = isinstance(error, msgspec.ValidationError)  # its text names Python's types
            why = "expected numbers in nested lists" if valid else error
            raise DataError(f"{name}: cannot be read as raw examples: {why}") from error
    try:
        return to_array([msgspec.json.decode(row, type=Numbers) for row in rows], name)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{name}: cannot be read as raw examples, neither as a whole nor line by line: {error}"
        ) from error


def to_array(value: Numbers, name: str) -> Array:
    """Convert nested lists to an array. DataError: lists have different lengths."""
    try:
        return np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise DataError(
            f"{name}: expected lists of one shape, found lists of different lengths"
        ) from error


def parse_npy(data: bytes | bytearray, name: str) -> Array:
    """Parse a .npy file in memory from an untrusted source: pickles are rejected, and memory is
    bounded by the file's size. Raises DataError.
    """
    file = io.BytesIO(data[:MAX_HEADER])
    try:
        version = np.lib.format.read_magic(file)
        header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = header(file)
    except Exception as error:  # Python's parsers raise many kinds of errors
        raise DataError(
            f"{name}: expected a .npy file, found one that cannot be read: "
            f"{' '.join(str(error).split())[:200]}"
        ) from error
    size, found = math.prod(shape) * dtype.itemsize, len(data) - file.tell()
    if dtype.hasobject or size != found:
        what = "pickled objects" if dtype.hasobject else f"{found} bytes"
        raise DataError(
            f"{name}: expected {size} bytes for the header's shape {list(shape)}, found {what}"
        )
    try:
        return np.frombuffer(data, dtype, offset=file.tell()).reshape(
            shape, order="F" if fortran else "C"
        )
    except (ValueError, TypeError) as error:
        # invalid sizes, too many axes, or elements of no bytes
        raise DataError(
            f"{name}: expected a .npy file of numbers, found {dtype} {str(shape)[:100]}: {error}"
        ) from error


def _list_files(path: Path) -> Iterator[Path]:
    if not path.exists():
        raise DataError(f"{path}: no such file or folder of examples")
    if not path.is_dir():
        yield path
        return
    files = sorted(Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    chosen = [
        file
        for file in files
        if file.suffix.lower() in ARRAYS + IMAGE_SUFFIXES and not file.name.startswith(".")
    ]
    if not chosen:
        raise DataError(
            f"{path}: expected files of {', '.join(ARRAYS + IMAGE_SUFFIXES)} in the folder, "
            "found none"
        )
    yield from chosen


def _parse_bytes(data: bytes, name: str) -> Array:
    return (
        parse_npy(data, name)
        if data.startswith(np.lib.format.MAGIC_PREFIX)
        else parse_json(data, name)
    )


def _read_file(path: Path, name: str) -> Array:
    suffix = path.suffix.lower()
    if suffix in (".json", ".jsonl"):
        return parse_json(path.read_bytes(), name)
    if suffix == ".npy":
        return parse_npy(path.read_bytes(), name)
    if suffix != ".npz":
        raise DataError(
            f"{name}: expected a file of {', '.join(ARRAYS)}, "
            f"or an image ({', '.join(IMAGE_SUFFIXES)})"
        )
    with path.open("rb") as file:
        found = np.load(file, allow_pickle=False)
        if isinstance(found, np.ndarray):  # a .npy file with the wrong suffix
            return found
        key = "x" if "x" in found else found.files[0] if len(found.files) == 1 else None
        if key is None:
            raise DataError(
                f"{name}: expected an array 'x', or one array only, found "
                f"{', '.join(found.files) or 'none'}"
            )
        return np.asarray(found[key])


def _read_image(path: Path, session: Session, *, resize: bool) -> Array:
    """Read one image as uint8 [channels, height, width]."""
    if len(session.inputs) != 3 or session.inputs[0] not in (1, 3) or session.dtype != np.uint8:
        raise DataError(
            f"{path}: found an image; the network requires {session.dtype} {list(session.inputs)}"
        )
    with require_extra(f"reading {path}", "data", "pillow"):
        from PIL import Image
    channels, height, width = session.inputs
    try:
        with Image.open(path) as opened:
            if (found := opened.size) != (width, height) and not resize:
                raise DataError(
                    f"{path}: expected an image of {width}x{height}, found "
                    f"{found[0]}x{found[1]}; --resize scales it"
                )
            if opened.mode not in GREY + COLOUR:
                raise DataError(
                    f"{path}: expected an image of 8 bits in grey or colour, found one "
                    f"of mode {opened.mode}"
                )
            # avoids Pillow's warning about transparency in a palette
            opened.info.pop("transparency", None)
            image = opened.convert("L" if channels == 1 else "RGB").resize((width, height))
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path}: expected an image, found one that cannot be read: {error}"
        ) from error
    pixels = np.asarray(image)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
