"""The kept total: the parts of a round's updates in files, one beside the other, for rules that
need all values of a coordinate at once.

It takes the place of `federated.engine.aggregate.Total` while a round collects: the same keys, the
same checks, each update once. Nothing of an update stays in memory but where its parts lie, and
what is read of the files is read in pieces, so that memory does not grow with the number of
updates; the disk holds one copy of each. A coordinator that dies makes them again from the updates,
which stay in its spool until the round is over.

    FOLDER/000000.parts     raw values of one update's parts, in their order, each aligned to 64
    bytes
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federated.engine.aggregate import Key, Part, Sum, Total, added, check
from federated.engine.update_norms import counted
from models.slicing import Where, corner

__all__ = ["Kept", "Slot"]

ALIGNMENT = 64
SUFFIX = ".parts"
DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Slot:
    """One part in a file. offset: bytes from its start. rows: which rows (axis 0 of the rectangle)
    count; None: all.
    """

    home: str
    where: Where
    shape: tuple[int, ...]
    dtype: str
    offset: int
    rows: tuple[bool, ...] | None = None

    @property
    def extent(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.where)


@dataclass(frozen=True)
class File:
    """What one update gave, and in which file."""

    path: Path
    slots: tuple[Slot, ...]


class Kept:
    """The updates of one round, below a folder of their own, which it empties of all others. Every
    update counts once where it gives anything.

    frame: per home an empty tensor of its shape, and how many updates cover each rectangle; its
    keys are those that were folded.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.frame, self._files = folder, Total(), dict[Key, File]()
        folder.mkdir(parents=True, exist_ok=True)
        self._tidy()

    @property
    def seen(self) -> dict[Key, None]:
        return self.frame.seen

    @property
    def counting(self) -> tuple[Key, ...]:
        """The keys of the updates that a rule looks at, in the order of the folds."""
        return tuple(self._files)

    def fold(self, parts: Iterable[Part], key: Key) -> bool:
        """Writes an update's parts down; False, and nothing written, where the key was folded
        before.

        ValueError: a part does not fit its home, or cannot be compared. OSError: there is no room.
        """
        if key in self.seen:
            return False
        found = [
            counted(part) for part in parts if isinstance(part.weight, Tensor) or part.weight > 0
        ]
        for part in found:
            check(self.frame, part)
            if part.scale != 1 or part.extra:
                raise ValueError(
                    f"part of {part.home}: a scale or extras, which no robust rule can compare"
                )
        path = self.folder / f"{len(self.seen):06d}{SUFFIX}"
        try:
            with path.open("wb") as file:
                slots = tuple(write(file, part) for part in found)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._add(key, File(path, slots))
        return True

    def parts(self, key: Key) -> Iterator[Part]:
        """What an update gave, read as it is asked for."""
        for slot in self._files[key].slots:
            yield Part(
                slot.home,
                slot.where,
                slot.shape,
                torch.from_numpy(self.read(key, slot)),
                weight_of(slot),
            )

    def slots(self, home: str) -> list[tuple[Key, Slot]]:
        """Where values of a home lie, in the order of the folds."""
        return [
            (key, slot)
            for key, file in self._files.items()
            for slot in file.slots
            if slot.home == home
        ]

    def of(self, key: Key) -> tuple[Slot, ...]:
        """Where an update's values lie, in the order of its parts."""
        return self._files[key].slots

    def signature(self, key: Key) -> tuple[tuple[str, Where], ...]:
        """Which rectangles an update gives: updates of equal ones can be compared."""
        return tuple((slot.home, slot.where) for slot in self._files[key].slots)

    def read(self, key: Key, slot: Slot, inner: Where | None = None) -> NDArray[Any]:
        """A part's values, or those of a rectangle in it, counted from its own start. OSError,
        ValueError: the file lacks them.

        What lies between the first and the last of them is read at once, and nothing is mapped:
        pages of a mapping count as memory of this process.
        """
        inner = corner(slot.extent) if inner is None else inner
        size, shape = np.dtype(slot.dtype).itemsize, tuple(b - a for a, b in inner)
        if not math.prod(shape):
            return np.empty(shape, slot.dtype)
        steps = [math.prod(slot.extent[axis + 1 :]) for axis in range(len(shape))]
        first = sum(a * step for (a, _), step in zip(inner, steps, strict=True))
        last = sum((b - 1) * step for (_, b), step in zip(inner, steps, strict=True))
        span = np.fromfile(
            self._files[key].path, slot.dtype, last - first + 1, offset=slot.offset + first * size
        )
        if span.size <= last - first:
            raise ValueError(
                f"{self._files[key].path}: expected {last - first + 1} values at "
                f"{slot.offset + first * size}, found {span.size}"
            )
        return np.lib.stride_tricks.as_strided(span, shape, [step * size for step in steps])

    def newest(self) -> None:
        """Forgets all but each agent's last update: a late one may come into the round that it is
        asked in again, and nobody counts twice.
        """
        last = {key[0]: key for key in self.seen}
        kept, seen = {key: self._files[key] for key in last.values()}, list(self.seen)
        if len(kept) == len(seen):
            return
        self._files, self.frame = {}, Total()
        for key in seen:
            if key in kept:
                self._add(key, kept[key])
        self.seen.clear()  # all were folded, whatever counts
        self.seen.update(dict.fromkeys(seen))

    def clear(self) -> None:
        """Forgets everything, the files too."""
        self._files, self.frame = {}, Total()
        self._tidy()

    def _add(self, key: Key, file: File) -> None:
        self._files[key] = file
        for slot in file.slots:
            known = self.frame.sums.setdefault(
                slot.home, Sum(torch.empty(slot.shape, device="meta"))
            )
            known.cover[slot.where] = added(known.cover.get(slot.where), [weight_of(slot)])
        self.seen[key] = None

    def _tidy(self) -> None:
        for path in self.folder.glob(f"*{SUFFIX}"):
            path.unlink()


def weight_of(slot: Slot) -> float | Tensor:
    return 1.0 if slot.rows is None else torch.tensor(slot.rows, dtype=torch.float64)


def write(file: BinaryIO, part: Part) -> Slot:
    """Writes a part's values at the end of a file; where they lie."""
    file.write(bytes(-file.tell() % ALIGNMENT))
    value = part.value if part.value.dtype in DTYPES else part.value.double()
    offset, array = file.tell(), value.detach().contiguous().numpy()
    array.tofile(file)
    rows = None if not isinstance(part.weight, Tensor) else tuple(part.weight.bool().tolist())
    return Slot(part.home, part.where, part.shape, array.dtype.name, offset, rows)
