"""The kept total: the parts of a round's updates in files, one beside the other, for rules that need all values of a coordinate at once.

It takes the place of `federated.aggregate.Total` while a round collects: the same keys, the same checks, each update once. Nothing of an update
stays in memory but where its parts lie. Reading maps the files and lets go of the pages again, so that memory does not grow with the number of
updates; the disk holds one copy of each. A coordinator that dies makes them again from the updates, which stay in its spool until the round is over.

    FOLDER/000000.parts     raw values of one update's parts, in their order, each aligned to 64 bytes
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from federated.aggregate import Key, Sum, Total, added, check
from federated.method import Part
from federated.norms import counted
from models.slicing import Where

__all__ = ["Kept", "Slot"]

ALIGNMENT = 64
SUFFIX = ".parts"
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Slot:
    """One part in a file. offset: bytes from its start. rows: which rows (axis 0 of the rectangle) count; None: all."""

    home: str
    where: Where
    shape: tuple[int, ...]
    dtype: str
    offset: int
    rows: tuple[bool, ...] | None = None

    @property
    def extent(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.where)


@dataclass
class File:
    """What one update gave, and the file, mapped for reading while somebody reads."""

    name: str
    slots: tuple[Slot, ...]
    map: mmap.mmap | None = field(default=None, repr=False)


class Kept:
    """The updates of one round, below a folder of their own, which it empties of all others. Every update counts once where it gives anything.

    frame: per home an empty tensor of its shape, and how many updates cover each rectangle; its keys are those that were folded.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.frame, self._files = folder, Total(), dict[Key, File]()
        folder.mkdir(parents=True, exist_ok=True)
        self._tidy()

    @property
    def seen(self) -> dict[Key, None]:
        return self.frame.seen

    def fold(self, parts: Iterable[Part], key: Key) -> bool:
        """Writes an update's parts down; False, and nothing written, where the key was folded before.

        ValueError: a part does not fit its home, or cannot be compared. OSError: there is no room.
        """
        if key in self.seen:
            return False
        found = [counted(part) for part in parts if isinstance(part.weight, Tensor) or part.weight > 0]
        for part in found:
            check(self.frame, part)
            if part.scale != 1 or part.extra:
                raise ValueError(f"part of {part.home}: a scale or extras, which no robust rule can compare")
        name = f"{len(self._files):06d}{SUFFIX}"
        path = self.folder / name
        try:
            with path.open("wb") as file:
                slots = tuple(write(file, part) for part in found)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._add(key, File(name, slots))
        return True

    def parts(self, key: Key) -> Iterator[Part]:
        """What an update gave, as views of its file: none may be kept when the next `release` comes."""
        for slot in self._files[key].slots:
            yield Part(slot.home, slot.where, slot.shape, self.view(key, slot), weight_of(slot))

    def slots(self, home: str) -> list[tuple[Key, Slot]]:
        """Where values of a home lie, in the order of the folds."""
        return [(key, slot) for key, file in self._files.items() for slot in file.slots if slot.home == home]

    def of(self, key: Key) -> tuple[Slot, ...]:
        """Where an update's values lie, in the order of its parts."""
        return self._files[key].slots

    def signature(self, key: Key) -> tuple[tuple[str, Where], ...]:
        """Which rectangles an update gives: updates of equal ones can be compared."""
        return tuple((slot.home, slot.where) for slot in self._files[key].slots)

    def view(self, key: Key, slot: Slot) -> Tensor:
        """A part's values, read-only."""
        file = self._files[key]
        if not math.prod(slot.extent):
            return torch.empty(slot.extent, dtype=DTYPES[slot.dtype])
        if file.map is None:
            with (self.folder / file.name).open("rb") as opened:
                # Copy on write, so that PyTorch takes it for writable, as its tensors are; nobody writes.
                file.map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        return torch.frombuffer(file.map, dtype=DTYPES[slot.dtype], count=math.prod(slot.extent), offset=slot.offset).reshape(slot.extent)

    def release(self) -> None:
        """Gives the memory of what was read back to the system."""
        for file in self._files.values():
            if file.map is not None and hasattr(mmap, "MADV_DONTNEED"):
                file.map.madvise(mmap.MADV_DONTNEED)

    def clear(self) -> None:
        """Forgets everything, the files too."""
        self._files, self.frame = {}, Total()
        self._tidy()

    def _add(self, key: Key, file: File) -> None:
        self._files[key] = file
        for slot in file.slots:
            known = self.frame.sums.setdefault(slot.home, Sum(torch.empty(slot.shape, device="meta")))
            known.cover[slot.where] = added(known.cover.get(slot.where), [weight_of(slot)])
        self.seen[key] = None

    def _tidy(self) -> None:
        known = {file.name for file in self._files.values()}
        for path in self.folder.glob(f"*{SUFFIX}"):
            if path.name not in known:
                path.unlink()


def weight_of(slot: Slot) -> float | Tensor:
    return 1.0 if slot.rows is None else torch.tensor(slot.rows, dtype=torch.float64)


def write(file: BinaryIO, part: Part) -> Slot:
    """Writes a part's values at the end of a file; where they lie."""
    file.write(bytes(-file.tell() % ALIGNMENT))
    value = part.value if part.value.dtype in DTYPES.values() else part.value.double()
    offset, array = file.tell(), value.detach().contiguous().numpy()
    array.tofile(file)
    rows = None if not isinstance(part.weight, Tensor) else tuple(part.weight.bool().tolist())
    return Slot(part.home, part.where, part.shape, array.dtype.name, offset, rows)
