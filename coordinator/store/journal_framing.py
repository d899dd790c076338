"""Encode the records of a journal file, and find those that are intact after a power cut. Imports
no PyTorch.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import Any

import msgspec

__all__ = ["FRAME", "SYNCED", "frame", "split_records", "unpack_plainly"]

FRAME = struct.Struct("<II")
SYNCED = 1 << 31  # flag in the length of a record


def frame(payload: bytes, *, synced: bool = True) -> bytes:
    """Return a record with this payload."""
    return FRAME.pack(len(payload) | (SYNCED if synced else 0), zlib.crc32(payload)) + payload


def split_records(data: bytes) -> list[bytes]:
    """Return the payloads of all records, without those at the end that a power cut damaged. Raises
    ValueError for damage before them, and without any record.
    """
    found, start = list[bytes](), 0
    while (record := read_record(data, start)) is not None:
        found.append(record)
        start += FRAME.size + len(record)
    # search for the last byte of a length with the flag; records are smaller than 16 MB
    for mark in re.finditer(b"\x80", data[start + FRAME.size :]):
        at = start + FRAME.size + mark.start() - 3
        if is_event(read_record(data, at)):
            raise ValueError(
                f"the record at byte {start} is damaged, but it was on disk before "
                f"the one at byte {at}"
            )
    if not found:
        raise ValueError("its first record is damaged")
    return found


def unpack_plainly(payload: bytes) -> Any:
    """Return the plain values of a record. Raises msgspec.DecodeError, ValueError."""
    return msgspec.msgpack.decode(payload)


def is_event(payload: bytes | None) -> bool:
    """Return True if a payload is an event. A number that an agent chose may look like a record of
    a few bytes.
    """
    try:
        value = None if payload is None else unpack_plainly(payload)
    except (msgspec.DecodeError, ValueError):
        return False
    return isinstance(value, dict) and isinstance(value.get("type"), str) and "now" in value


def read_record(data: bytes, start: int) -> bytes | None:
    """Return the payload of the record at a position; None if it is not complete and intact."""
    if start + FRAME.size > len(data):
        return None
    length, crc = FRAME.unpack_from(data, start)
    payload = data[start + FRAME.size : start + FRAME.size + (length & ~SYNCED)]
    # a file system may leave zeros, which would pass for empty records
    if not payload or len(payload) < length & ~SYNCED or zlib.crc32(payload) != crc:
        return None
    return payload
