"""Encode and decode tensors as one blob: a header, then the raw values, each tensor aligned to 64
bytes.

    b"ESPL" | version u16 | 0 u16 | header bytes u64 | header (msgpack: meta, tensors) | padding |
    tensor | padding | tensor ...

Offsets count from the start of the aligned data. Values are little-endian. Decoding checks the
whole header, and copies nothing: the arrays are views of the blob.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import msgpack
import msgspec
import numpy as np
from numpy.typing import NDArray

from federated.errors import Malformed, Refused

__all__ = [
    "ALIGNMENT",
    "DTYPES",
    "check",
    "check_layout",
    "decode",
    "describe_infinite",
    "encode",
    "is_finite",
    "layout",
    "locate",
    "pieces",
]

Array = NDArray[Any]

MAGIC, VERSION = b"ESPL", 1
PREFIX = struct.Struct("<4sHHQ")
ALIGNMENT = 64
MAX_HEADER = 4 * 2**20  # bytes; decoded, they take up to 80 times as many
MAX_AXES = 8
DTYPES = ("bool", "float16", "float32", "float64", "int8", "int32", "int64", "uint8")
STORED = {np.dtype(name).newbyteorder("<"): name for name in DTYPES}
META, TENSORS = b"\x82" + msgpack.packb("meta"), msgpack.packb("tensors")  # keys of the header
# tables of tensors that are remembered, since all updates of a submodel have the same one
REMEMBERED, SMALL = 32, 2**15  # number, and bytes of the largest


def encode(
    meta: Mapping[str, Any], tensors: Mapping[str, Any], into: bytearray | None = None
) -> memoryview:
    """Return the blob of plain values `meta` and of named arrays (numpy, or torch tensors on a
    CPU), in order.

    into: a buffer to reuse, which saves page faults. To let it grow, no view of an earlier blob may
        exist.
    Raises ValueError for an unsupported dtype, or more than 8 axes.
    """
    parts = pieces(meta, tensors)
    end = sum(map(len, parts))
    buffer = bytearray(end) if into is None else into
    if len(buffer) < end:
        buffer.extend(bytes(end - len(buffer)))
    view, start = memoryview(buffer)[:end], 0
    for part in parts:
        view[start : start + len(part)] = part
        start += len(part)
    return view


def pieces(meta: Mapping[str, Any], tensors: Mapping[str, Any]) -> list[bytes | memoryview]:
    """Return the same blob in pieces, for a file. Those of contiguous arrays are views of them."""
    arrays = {name: _to_numpy(value) for name, value in tensors.items()}
    entries = {
        name: (STORED.get(array.dtype) or array.dtype.name, array.shape)
        for name, array in arrays.items()
    }
    header, starts, _ = layout(meta, entries)
    parts, end = list[bytes | memoryview]([header]), 0
    for name, array in arrays.items():
        # a gap is zeroed, so that equal tensors make equal blobs
        parts.append(bytes(starts[name] - end))
        parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        end = starts[name] + array.nbytes
    return parts


def layout(
    meta: Mapping[str, Any], entries: Mapping[str, tuple[str, tuple[int, ...]]]
) -> tuple[bytes, dict[str, int], int]:
    """Return the layout of a blob, for a writer that streams it: all bytes before the data, the
    offset of each tensor in the data, and the size of the data in bytes.

    entries: name -> (dtype, shape), in order.
    Raises ValueError for an unsupported dtype, or more than 8 axes.
    """
    rows, starts, end = _lay_out(tuple(entries.items()))
    header = b"".join((META, msgpack.packb(dict(meta)), TENSORS, rows))
    packed: bytes = PREFIX.pack(MAGIC, VERSION, 0, len(header)) + header
    return packed.ljust(_align(len(packed)), b"\0"), starts, end


@lru_cache(REMEMBERED)
def _lay_out(
    entries: tuple[tuple[str, tuple[str, tuple[int, ...]]], ...],
) -> tuple[bytes, dict[str, int], int]:
    """Return the encoded table of tensors, which callers must not change, their offsets, and the
    size of the data.
    """
    starts, end, rows = dict[str, int](), 0, list[list[Any]]()
    for name, (dtype, shape) in entries:
        if dtype not in DTYPES or len(shape) > MAX_AXES:
            raise ValueError(
                f"tensor {name}: expected one of {', '.join(DTYPES)} with at most "
                f"{MAX_AXES} axes, found {dtype} with {len(shape)}"
            )
        starts[name] = _align(end)
        end = starts[name] + math.prod(shape) * np.dtype(dtype).itemsize
        rows.append([name, dtype, list(shape), starts[name]])
    return msgpack.packb(rows), starts, end


def decode(
    buffer: bytes | bytearray | memoryview,
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return meta and read-only views of the tensors of a blob. Raises Malformed."""
    view = memoryview(buffer).cast("B").toreadonly()
    length = _read_length(view[: PREFIX.size], len(view))
    meta, table = _read_header(view[PREFIX.size : PREFIX.size + length])
    return meta, _make_views(view[min(_align(PREFIX.size + length), len(view)) :], table)


def locate(file: BinaryIO, after: int = 0) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Return the dtype, the shape and the offset in the file of each tensor of a blob, without
    reading values. Raises Malformed, OSError.

    after: number of bytes in the file after the blob.
    """
    size = os.fstat(file.fileno()).st_size - after
    length = _read_length(memoryview(file.read(PREFIX.size)), size)
    _, table = _read_header(memoryview(file.read(length)))
    base = min(_align(PREFIX.size + length), size)
    return {
        place.name: (STORED[place.dtype], place.shape, base + place.start)
        for place in _find_places(table, size - base)
    }


def check(
    tensors: Mapping[str, Array], expected: Mapping[str, tuple[int, ...]], dtype: str = "float32"
) -> None:
    """Raise Refused unless exactly the expected tensors are there, with these shapes, this dtype
    and finite values.
    """
    check_layout(tensors, expected, dtype)
    for name, array in tensors.items():
        if not is_finite(array):
            raise Refused(describe_infinite(name, array))


def check_layout(
    tensors: Mapping[str, Array], expected: Mapping[str, tuple[int, ...]], dtype: str = "float32"
) -> None:
    """Raise Refused unless exactly the expected tensors are there, with these shapes and this
    dtype. Reads no values.
    """
    if missing := sorted(expected.keys() - tensors.keys()):
        raise Refused(
            f"missing tensors: {', '.join(missing[:4])} ({len(missing)} of {len(expected)})"
        )
    if foreign := sorted(tensors.keys() - expected.keys()):
        raise Refused(f"unexpected tensors: {', '.join(foreign[:4])} ({len(foreign)} in all)")
    wanted = np.dtype(dtype)
    for name, array in tensors.items():
        if tuple(array.shape) != tuple(expected[name]):
            raise Refused(
                f"tensor {name}: expected shape {tuple(expected[name])}, found {tuple(array.shape)}"
            )
        if array.dtype.newbyteorder("=") != wanted:
            raise Refused(f"tensor {name}: expected {dtype}, found {array.dtype.name}")


def describe_infinite(name: str, array: Array) -> str:
    """Return the problem of a tensor with values that are not finite."""
    count = int((~np.isfinite(array)).sum())
    return f"tensor {name}: expected finite values, found {count} NaN or infinite ones"


def _to_numpy(value: Any) -> Array:
    """Return a value as a little-endian array."""
    array = (
        value
        if isinstance(value, np.ndarray)
        else np.asarray(value.detach().numpy() if hasattr(value, "detach") else value)
    )
    if array.dtype in STORED:
        return array
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def is_finite(array: Array) -> bool:
    """Return True if all values are finite. NaN and infinity show in the smallest or the largest
    value, which are found without allocating memory.
    """
    return array.size == 0 or bool(np.isfinite(array.min()) and np.isfinite(array.max()))


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


class _Header(msgspec.Struct):
    """A header whose parts are not decoded yet. All lengths in it are checked against the blob."""

    meta: msgspec.Raw
    tensors: msgspec.Raw


_HEADER = msgspec.msgpack.Decoder(_Header)


def _read_header(raw: memoryview) -> tuple[dict[str, Any], bytes]:
    """Return the meta of a header, and its encoded table of tensors."""
    try:
        header = _HEADER.decode(raw)
        meta = _unpack(header.meta)
    except (msgspec.MsgspecError, *UNREADABLE) as error:
        raise _explain_unreadable(error) from error
    if not isinstance(meta, dict):
        raise Malformed("tensors: expected a header with meta and tensors")
    return meta, bytes(header.tensors)


UNREADABLE = (ValueError, TypeError, msgpack.UnpackException, RecursionError)


def _unpack(part: bytes | msgspec.Raw) -> Any:
    return msgpack.unpackb(memoryview(part), raw=False, strict_map_key=True, max_ext_len=0)


def _explain_unreadable(error: Exception) -> Malformed:
    return Malformed(
        f"tensors: the header is not msgpack: {type(error).__name__}: {str(error)[:200]}"
    )


def _read_length(head: memoryview, size: int) -> int:
    """Return the bytes of the header of a blob of `size` bytes that starts with `head`."""
    if len(head) < PREFIX.size:
        raise Malformed(f"tensors: expected at least {PREFIX.size} bytes, found {len(head)}")
    magic, version, reserved, length = PREFIX.unpack(head)
    if (magic, version, reserved) != (MAGIC, VERSION, 0):
        raise Malformed(
            f"tensors: expected {MAGIC!r} version {VERSION}, found {magic!r} version "
            f"{version} ({reserved})"
        )
    if length > min(MAX_HEADER, size - PREFIX.size):
        raise Malformed(f"tensors: expected a smaller header in {size} bytes, found {length} bytes")
    return int(length)


class _Place(NamedTuple):
    """Where a tensor is in the data, in bytes."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    end: int


def _find_places(table: bytes, size: int) -> tuple[_Place, ...]:
    """Return the place of each tensor of an encoded table in `size` bytes of data."""
    return (_remember_places if len(table) <= SMALL else _place_tensors)(table, size)


def _place_tensors(table: bytes, size: int) -> tuple[_Place, ...]:
    """Check an encoded table, and return the place of each tensor in `size` bytes of data.

    Each must start at the aligned end of the previous one, so none overlap or lie outside.
    """
    try:
        entries = _unpack(table)
    except UNREADABLE as error:
        raise _explain_unreadable(error) from error
    if not isinstance(entries, list):
        raise Malformed("tensors: expected a header with meta and tensors")
    names, end, places = set[str](), 0, list[_Place]()
    for entry in entries:
        name, dtype, shape, start = _read_entry(entry)
        stored = np.dtype(dtype).newbyteorder("<")
        nbytes = math.prod(shape) * stored.itemsize
        if name in names or start != _align(end) or start + nbytes > size:
            raise Malformed(
                f"tensor {name[:100]!r}: expected a new name at offset {_align(end)} of {size}, "
                f"found {nbytes} bytes at {start}"
            )
        names.add(name)
        end = start + nbytes
        places.append(_Place(name, stored, shape, start, end))
    if end != size:
        raise Malformed(f"tensors: expected {end} bytes of values, found {size}")
    return tuple(places)


_remember_places = lru_cache(REMEMBERED)(_place_tensors)


def _make_views(data: memoryview, table: bytes) -> dict[str, Array]:
    flat, views = np.frombuffer(data, np.uint8), dict[str, Array]()
    for name, dtype, shape, start, end in _find_places(table, len(data)):
        found = flat[start:end]
        if dtype.kind == "b" and found.size and found.max() > 1:
            raise Malformed(f"tensor {name[:100]!r}: expected bool values of 0 and 1")
        views[name] = found.view(dtype).reshape(shape)
    return views


def _read_entry(entry: Any) -> tuple[str, str, tuple[int, ...], int]:
    match entry:
        case [str() as name, str() as dtype, list() as shape, int() as start] if (
            dtype in DTYPES
            and len(shape) <= MAX_AXES
            and all(type(n) is int and 0 <= n < 2**40 for n in (*shape, start))
            # the largest shape of numpy, even if one side is 0
            and math.prod(n or 1 for n in shape) < 2**40
        ):
            return name, dtype, tuple(shape), start
    raise Malformed(f"tensors: expected [name, dtype, shape, offset], found {str(entry)[:200]}")
