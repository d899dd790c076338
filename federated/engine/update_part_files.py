"""Store the parts of a round's updates in files, for robust rules that need all values of a
coordinate at once.

A `PartStore` replaces `federated.engine.aggregate.Total` while a round collects updates: the same
keys, the same checks, each update once. It remembers only where the parts are, and reads them in
pieces, so memory does not grow with the number of updates; the disk holds one copy of each. After a
crash, the coordinator writes the files again from the updates, which stay in its spool until the
round is over. Every piece that is read is compared with the checksums of what was written.

    FOLDER/000000.parts     raw values of one update's parts, in order
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federated.engine.aggregate import Key, Sum, Total, add_columns, check
from federated.engine.update_contributions import Part
from federated.engine.update_norms import count_once
from federated.errors import StoreError
from models.slicing import Where, corner

__all__ = ["PartStore", "Slot"]

PIECE = 1 << 14  # bytes per checksum
SUFFIX = ".parts"
DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Slot:
    """Place of one part in a file.

    home, where, shape: as in `Part`
    dtype: numpy's name
    offset: bytes from the start of the file
    checksums: CRC-32 of each PIECE bytes, four bytes each
    rows: True for each row (axis 0 of the rectangle) that counts; None: all rows
    """

    home: str
    where: Where
    shape: tuple[int, ...]
    dtype: str
    offset: int
    checksums: bytes
    rows: tuple[bool, ...] | None = None

    @property
    def extent(self) -> tuple[int, ...]:
        """Shape of the rectangle."""
        return tuple(stop - start for start, stop in self.where)


@dataclass(frozen=True)
class File:
    """Parts of one update.

    path: the file with their values
    slots: place of each part
    """

    path: Path
    slots: tuple[Slot, ...]


class PartStore:
    """Updates of one round, in a folder of their own. Opening it deletes the files of earlier
    rounds. Every update has weight 1 where it contributes.

    frame: per home an empty tensor of its shape, the number of updates that cover each rectangle,
        and the keys that were folded
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.frame, self._files = folder, Total(), dict[Key, File]()
        folder.mkdir(parents=True, exist_ok=True)
        self._remove_files()

    @property
    def seen(self) -> dict[Key, None]:
        """Keys of all folded updates."""
        return self.frame.seen

    @property
    def counting(self) -> tuple[Key, ...]:
        """Keys of the updates that a rule looks at, in the order of the folds."""
        return tuple(self._files)

    def fold(self, parts: Iterable[Part], key: Key) -> bool:
        """Write an update's parts. Return False, and write nothing, if the key was folded before.

        ValueError: a part does not fit its home, or cannot be compared. OSError: the disk is full.
        """
        if key in self.seen:
            return False
        counting = [
            count_once(part) for part in parts if isinstance(part.weight, Tensor) or part.weight > 0
        ]
        check(self.frame, counting)
        for part in counting:
            if part.scale != 1 or part.extra:
                raise ValueError(
                    f"part of {part.home}: robust rules cannot compare a scale or extras"
                )
        path = self.folder / f"{len(self.seen):06d}{SUFFIX}"
        try:
            with path.open("wb") as file:
                slots = tuple(write(file, part) for part in counting)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._add(key, File(path, slots))
        return True

    def parts(self, key: Key) -> Iterator[Part]:
        """Yield an update's parts, each read when it is asked for."""
        for slot in self.slots_of(key):
            yield Part(
                slot.home,
                slot.where,
                slot.shape,
                torch.from_numpy(self.read(key, slot)),
                weight_of(slot),
            )

    def slots(self, home: str) -> list[tuple[Key, Slot]]:
        """Return the places of a home's values, in the order of the folds."""
        return [
            (key, slot) for key in self._files for slot in self.slots_of(key) if slot.home == home
        ]

    def slots_of(self, key: Key) -> tuple[Slot, ...]:
        """Return the places of an update's values, in the order of its parts."""
        return self._files[key].slots

    def signature(self, key: Key) -> tuple[tuple[str, Where], ...]:
        """Return the rectangles of an update; updates with equal signatures can be compared."""
        return tuple((slot.home, slot.where) for slot in self.slots_of(key))

    def read(self, key: Key, slot: Slot, inner: Where | None = None) -> NDArray[Any]:
        """Return a part's values, or those of a rectangle within it, counted from the part's own
        start.

        Read everything between the first and the last value at once. Do not map the file: mapped
        pages count as memory of this process. OSError: the file cannot be read. StoreError: it is
        damaged.
        """
        inner = corner(slot.extent) if inner is None else inner
        shape = tuple(b - a for a, b in inner)
        if not math.prod(shape):
            return np.empty(shape, slot.dtype)
        size = np.dtype(slot.dtype).itemsize
        steps = [size * math.prod(slot.extent[axis + 1 :]) for axis in range(len(shape))]
        first = sum(a * step for (a, _), step in zip(inner, steps, strict=True))
        last = sum((b - 1) * step for (_, b), step in zip(inner, steps, strict=True))
        span = read_bytes(self._files[key].path, slot, first, last + size).view(slot.dtype)
        return np.lib.stride_tricks.as_strided(span, shape, steps)

    def keep_newest(self) -> None:
        """Discard all but the last update of each agent. A late update may arrive in the round in
        which its agent trains again, and no agent counts twice.
        """
        last = {key[0]: key for key in self.seen}
        kept, seen = {key: self._files[key] for key in last.values()}, list(self.seen)
        if len(kept) == len(seen):
            return
        self._files, self.frame = {}, Total()
        for key in seen:
            if key in kept:
                self._add(key, kept[key])
        self.seen.clear()  # restore the order and the keys that no longer count
        self.seen.update(dict.fromkeys(seen))

    def clear(self) -> None:
        """Discard all updates and delete their files."""
        self._files, self.frame = {}, Total()
        self._remove_files()

    def _add(self, key: Key, file: File) -> None:
        self._files[key] = file
        for slot in file.slots:
            known = self.frame.sums.setdefault(
                slot.home, Sum(torch.empty(slot.shape, device="meta"))
            )
            known.cover[slot.where] = add_columns(known.cover.get(slot.where), [weight_of(slot)])
        self.seen[key] = None

    def _remove_files(self) -> None:
        for path in self.folder.glob(f"*{SUFFIX}"):
            path.unlink()


def weight_of(slot: Slot) -> float | Tensor:
    """Return the weight of a slot: 1, or a vector of 0 and 1 over its rows."""
    return 1.0 if slot.rows is None else torch.tensor(slot.rows, dtype=torch.float64)


def write(file: BinaryIO, part: Part) -> Slot:
    """Append a part's values to a file, and return their place."""
    value = part.value if part.value.dtype in DTYPES else part.value.double()
    offset, array = file.tell(), value.detach().contiguous().numpy()
    array.tofile(file)
    rows = None if not isinstance(part.weight, Tensor) else tuple(part.weight.bool().tolist())
    sums = compute_checksums(array.reshape(-1).view(np.uint8))
    return Slot(part.home, part.where, part.shape, array.dtype.name, offset, sums, rows)


def read_bytes(path: Path, slot: Slot, start: int, stop: int) -> NDArray[np.uint8]:
    """Read bytes of a part, counted from its start, and compare the pieces that hold them with
    their checksums. OSError. StoreError: they differ.
    """
    first, end = start // PIECE, -(-stop // PIECE)
    size = min(end * PIECE, math.prod(slot.extent) * np.dtype(slot.dtype).itemsize)
    found = np.fromfile(path, np.uint8, size - first * PIECE, offset=slot.offset + first * PIECE)
    if compute_checksums(found) != slot.checksums[4 * first : 4 * end]:
        raise StoreError(
            f"{path} is damaged: its checksums differ; resume the run, which writes the file again "
            "from the received update"
        )
    return found[start - first * PIECE : stop - first * PIECE]


def compute_checksums(data: NDArray[np.uint8]) -> bytes:
    """Return the CRC-32 of each PIECE bytes, four bytes each."""
    return b"".join(
        zlib.crc32(data.data[at : at + PIECE]).to_bytes(4, "little")
        for at in range(0, len(data), PIECE)
    )
