"""Find the bytes of a SQLite database that hold present rows, in its file or in its write-ahead
log, so that a bit of them can be flipped.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from federated.runtime.sqlite_wal_damage import FRAME, HEADER

__all__ = ["Span", "find_rows"]

INTERIOR, LEAF = 0x05, 0x0D  # types of the pages of a table


@dataclass(frozen=True)
class Span:
    """Bytes of a file, from `start` to `end`."""

    path: Path
    start: int
    end: int


def find_rows(database: Path) -> list[Span]:
    """Return the bytes of all rows of a database, without changing it. No process may have it open.

    The format is that of https://sqlite.org/fileformat2.html, sections 1.5, 1.6 and 4.
    """
    pages, roots = find_latest_pages(database), find_table_roots(database)
    return [span for root in roots for span in find_rows_below(pages, root)]


def find_table_roots(database: Path) -> list[int]:
    """Return the number of the first page of each table."""
    copies = Path(f"{database}-copy"), Path(f"{database}-copy-wal")
    for copy, suffix in zip(copies, ("", "-wal"), strict=True):
        if (source := Path(f"{database}{suffix}")).exists():
            copy.write_bytes(source.read_bytes())
    try:
        with closing(sqlite3.connect(copies[0])) as opened:
            query = "SELECT rootpage FROM sqlite_master WHERE type = 'table' ORDER BY name"
            return [root for (root,) in opened.execute(query)]
    finally:
        for copy in (*copies, Path(f"{database}-copy-shm")):
            copy.unlink(missing_ok=True)


def find_latest_pages(database: Path) -> dict[int, Span]:
    """Return the bytes that hold the latest content of each page, by page number."""
    size = int.from_bytes(database.read_bytes()[16:18], "big")
    count = database.stat().st_size // size
    found = {page + 1: Span(database, page * size, (page + 1) * size) for page in range(count)}
    log = Path(f"{database}-wal")
    data = log.read_bytes() if log.exists() else b""
    pending = dict[int, Span]()
    for start in range(HEADER, len(data) - FRAME - size + 1, FRAME + size):
        page, commit = (int.from_bytes(data[start + at : start + at + 4], "big") for at in (0, 4))
        if data[start + 8 : start + 16] != data[16:24]:
            break  # left by an earlier use of the log
        pending[page] = Span(log, start + FRAME, start + FRAME + size)
        if commit:
            found |= pending
            pending = {}
    return found


def find_rows_below(pages: dict[int, Span], number: int) -> Iterator[Span]:
    """Yield the bytes of the rows below a page of a table."""
    place = pages[number]
    data = place.path.read_bytes()[place.start : place.end]
    at = 100 if number == 1 else 0
    kind, count = data[at], int.from_bytes(data[at + 3 : at + 5], "big")
    first = at + (12 if kind == INTERIOR else 8)
    cells = [int.from_bytes(data[first + 2 * n : first + 2 * n + 2], "big") for n in range(count)]
    if kind == INTERIOR:
        for cell in cells:
            yield from find_rows_below(pages, int.from_bytes(data[cell : cell + 4], "big"))
        yield from find_rows_below(pages, int.from_bytes(data[at + 8 : at + 12], "big"))
    elif kind == LEAF:
        for cell in cells:
            yield from read_cell(pages, place, data, cell)


def read_cell(pages: dict[int, Span], place: Span, data: bytes, cell: int) -> Iterator[Span]:
    """Yield the bytes of a row, also those on overflow pages."""
    size, start = read_number(data, cell)
    _, start = read_number(data, start)
    usable = len(data)
    kept = size
    if size > usable - 35:
        least = (usable - 12) * 32 // 255 - 23
        kept = least + (size - least) % (usable - 4)
        kept = kept if kept <= usable - 35 else least
    yield Span(place.path, place.start + cell, place.start + start + kept)
    left = size - kept
    after = int.from_bytes(data[start + kept : start + kept + 4], "big") if left else 0
    while left > 0:
        over = pages[after]
        part = min(left, usable - 4)
        yield Span(over.path, over.start + 4, over.start + 4 + part)
        after = int.from_bytes(over.path.read_bytes()[over.start : over.start + 4], "big")
        left -= part


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and the position after it."""
    value = 0
    for length in range(8):
        byte = data[at + length]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + length + 1
    return value << 8 | data[at + 8], at + 9
