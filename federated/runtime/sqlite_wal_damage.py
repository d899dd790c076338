"""Find damage to SQLite's write-ahead log before SQLite opens the database: it would silently drop
the damaged transaction and all later ones, and remove the log.

A log is a header and frames, one for each written page. Each frame has the salt of the header and a
checksum that continues the one of the frame before. SQLite syncs the log after each transaction, so
a power cut can damage only the last one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FRAME", "HEADER", "LogDamage", "find_log_damage"]

HEADER, FRAME = 32, 24  # bytes of the header, and of the header of a frame
ORDERS = {0x377F0682: "<", 0x377F0683: ">"}  # byte order of the summed words, by magic number
PAGE_SIZE = slice(16, 18)  # in the database's own header
MASK = 2**32 - 1

Sums = tuple[int, int]


@dataclass(frozen=True)
class LogDamage:
    """Damage to a log.

    problem: in words that follow the file's name.
    last: whether it is in the last transaction, which a power cut may leave damaged.
    """

    problem: str
    last: bool


@dataclass(frozen=True)
class Frame:
    """A frame. ends: whether it ends a transaction; salted: whether it has the header's salt;
    summed: whether its checksum continues that of the frame before.
    """

    ends: bool
    salted: bool
    summed: bool

    @property
    def intact(self) -> bool:
        return self.salted and self.summed


def find_log_damage(database: Path) -> LogDamage | None:
    """Return the damage to the log of a database that no process writes; None if it is intact or
    missing. Raises OSError.
    """
    log = database.with_name(f"{database.name}-wal")
    data = log.read_bytes() if log.exists() else b""
    if len(data) <= HEADER:
        return None
    magic, _, size = struct.unpack_from(">III", data)
    order, stored = ORDERS.get(magic), read_sums(data, 24)
    if order and add_up(data[:24], order, (0, 0)) == stored:
        return find_damaged_frame(list(read_frames(data, size, order, stored)))
    return find_damaged_header(data, database)


def find_damaged_frame(frames: Sequence[Frame]) -> LogDamage | None:
    """Return the damage to the frames after an intact header."""
    while frames and not frames[-1].salted:  # left by an earlier use of the log
        frames = frames[:-1]
    first = next((at for at, frame in enumerate(frames) if not frame.intact), None)
    if first is None:
        return None
    end = next((at for at, frame in enumerate(frames) if at >= first and frame.ends), None)
    if end is None:
        return None  # the transaction was not complete
    last = not any(frame.intact for frame in frames[end + 1 :])
    return LogDamage(f"is damaged in frame {first + 1} of {len(frames)}", last)


def find_damaged_header(data: bytes, database: Path) -> LogDamage | None:
    """Return the damage to a header if frames follow that belong to it."""
    with database.open("rb") as file:
        size = int.from_bytes(file.read(PAGE_SIZE.stop)[PAGE_SIZE], "big")
    size = 65536 if size == 1 else size
    for order in ORDERS.values() if size >= 512 else ():
        for sums in (read_sums(data, 24), add_up(data[:24], order, (0, 0))):
            if any(frame.summed for frame in read_frames(data, size, order, sums)):
                return LogDamage("is damaged in its header", last=False)
    return None


def read_frames(data: bytes, size: int, order: str, sums: Sums) -> Iterator[Frame]:
    """Yield the complete frames of a log. size: bytes of a page; sums: checksum of the header."""
    for start in range(HEADER, len(data) - FRAME - size + 1, FRAME + size):
        page = start + FRAME
        stored = read_sums(data, start + 16)
        sums = add_up(data[page : page + size], order, add_up(data[start : start + 8], order, sums))
        ends, salt = any(data[start + 4 : start + 8]), data[start + 8 : start + 16]
        yield Frame(ends, salt == data[16:24], sums == stored)
        sums = stored  # so that damage does not spread


def read_sums(data: bytes, at: int) -> Sums:
    """Return the checksum at a position."""
    one, two = struct.unpack_from(">II", data, at)
    return one, two


def add_up(data: bytes, order: str, sums: Sums) -> Sums:
    """Continue a checksum over more data, whose length is a multiple of eight."""
    one, two = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & MASK
        two = (two + second + one) & MASK
    return one, two
