"""Record the events of a run's rounds in order, so that a restarted coordinator can replay them.

A journal consists of segments, journal-000001.log and so on. A segment begins with a base: the
round's value and, if updates were folded since the last checkpoint, the name of the file with their
total. Events follow. A snapshot or a checkpoint begins a new segment, and the old one is removed.
Each base names the checkpoint that it continues by the checkpoint's sha256, so a lost journal is
noticed.

A record is its length and its CRC-32 (four bytes each, little-endian), then MessagePack. The
highest bit of the length says that all records before this one were on disk when it was written. A
power cut can damage only what came after the last such record; that is cut off. Damage before it
would lose what others were promised, so it is an error.
"""

from __future__ import annotations

import logging
import typing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
from immutables import Map
from msgspec import Struct

from coordinator.observe.round_records import Folded
from coordinator.round.round_events import RoundEvent, RoundPlanned
from coordinator.round.round_state import Round
from coordinator.store.journal_framing import FRAME, frame, split_records
from coordinator.store.tensor_files import read_tensors, write_tensors
from federated.engine.aggregate import Total, dump, load
from federated.errors import StoreError, explain_os_errors
from federated.runtime import atomic_files
from federated.system.disk_sync import sync

__all__ = ["Base", "Journal", "pack"]

log = logging.getLogger(__name__)

REMEDY = (
    "run coordinator check RUN --repair, which starts the round over; or restore the run's folder "
    "from a backup"
)


class Base(Struct, frozen=True):
    """The first record of a segment.

    checkpoint: round and sha256 of the checkpoint that it continues (`Store.checkpoint_id`); empty
        before the first one.
    round: the value that the events start from.
    total: name of the file that holds the total; empty while nothing was folded since the
        checkpoint.
    folded: the updates in that total.
    digest: sha256 of that file; empty without one.
    """

    checkpoint: str
    round: Round
    total: str = ""
    folded: tuple[Folded, ...] = ()
    digest: str = ""


class Journal:
    """The journal in a run's folder. Every method raises StoreError if the disk fails."""

    def __init__(self, folder: Path, check: Callable[[], None] = lambda: None) -> None:
        """check: called before each change, once its file is open; raises if this process may not
        write (`coordinator.store.run_lock.check`).
        """
        self._folder, self._check = folder, check
        self._file: FileIO | None = None
        self._base: Base | None = None
        self._unsynced = False
        self.records = self.written = 0  # events in the current segment, and their bytes

    @property
    def recording(self) -> bool:
        """True if a segment was begun or resumed."""
        return self._file is not None

    @property
    def size(self) -> int:
        """Bytes on disk of the total, the segments, and SQLite's write-ahead log. If there are two
        totals, one is about to be removed.
        """
        sizes = {
            pattern: [path.stat().st_size for path in self._folder.glob(pattern)]
            for pattern in ("total-*", "journal-*", "*-wal")
        }
        return max(sizes.pop("total-*"), default=0) + sum(map(sum, sizes.values()))

    @property
    def empty(self) -> bool:
        """True if no round was ever planned."""
        try:
            found = [self._read(path) for path in self._segments()]
        except StoreError:
            return False
        return not any(
            base.round.plan or any(isinstance(e, RoundPlanned) for e in events)
            for base, events in found
        )

    # ---- writing ---------------------------------------------------------------------------------

    def begin(self, base: Base) -> None:
        """Begin a segment. The one before it stays until `sweep`."""
        number = max((int(path.stem.partition("-")[2]) for path in self._segments()), default=0) + 1
        path = self._folder / f"journal-{number:06d}.log"
        with self._explain_errors():
            try:
                atomic_files.write_pieces(path, self._check_first(frame(pack(base))))
                self._open(path)
            except OSError:
                # a resumed run would read it as the newest, while events go to the old one
                self._check()
                path.unlink(missing_ok=True)
                raise
        self._base, self.records, self.written = base, 0, 0

    def _check_first(self, content: bytes) -> Iterator[bytes]:
        self._check()
        yield content

    def append(self, event: RoundEvent) -> None:
        """Write an event, which is on disk only after `sync`. A partial write is cut off again."""
        assert self._file is not None, "no segment was begun"
        self._check()
        end, left = self._file.tell(), memoryview(frame(pack(event), synced=not self._unsynced))
        with self._explain_errors():
            try:
                while left:
                    # unbuffered: the rest of a failed write must not follow later
                    left = left[self._file.write(left) :]
            except OSError:
                self._file.seek(end)
                self._file.truncate(end)
                raise
        self._unsynced = True
        self.records += 1
        self.written += self._file.tell() - end

    def sync(self) -> None:
        """Write every event to the disk, and wait until that is done."""
        if self._file is None or not self._unsynced:
            return
        with self._explain_errors():
            sync(Path(self._file.name))
        self._unsynced = False

    def write_total(self, name: str, total: Total) -> str:
        """Write a total to a file of this name, and return its sha256."""
        tensors, text = dump(total)
        self._check()
        with self._explain_errors():
            return write_tensors(self._folder / name, tensors, {"total": text}, self._check)

    def sweep(self) -> None:
        """Remove all segments but the current one, and all totals but its own."""
        present = {Path(self._file.name).name} if self._file is not None else set()
        if self._base is not None and self._base.total:
            present.add(self._base.total)
        found = [*self._folder.glob("journal-*"), *self._folder.glob("total-*")]
        self._check()  # once they are listed: those of a later coordinator must stay
        for path in found:
            if path.name not in present:
                path.unlink(missing_ok=True)

    # ---- reading ---------------------------------------------------------------------------------

    def read(self, checkpoint: str) -> tuple[Base, list[RoundEvent]] | None:
        """Return the base that continues a checkpoint and the events after it; None if there is no
        such segment.
        """
        found = self._find(checkpoint)
        return None if found is None else found[1:]

    def resume(self, checkpoint: str) -> tuple[Base, list[RoundEvent]] | None:
        """Read as `read` does, remove other segments, and append to this one from now on."""
        found = self._find(checkpoint)
        if found is None:
            return None
        path, base, events = found
        with self._explain_errors():
            self._open(path)
        self._base, self.records = base, len(events)
        self.sweep()
        return base, events

    def read_total(self, name: str, digest: str) -> Total:
        """Read the total with this sha256."""
        what = f"the journal's total {self._folder / name}"
        tensors, texts = read_tensors(self._folder / name, digest, what)
        with explain_os_errors(StoreError, f"cannot read {what}", ValueError, KeyError):
            return load(tensors, texts["total"])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _find(self, checkpoint: str) -> tuple[Path, Base, list[RoundEvent]] | None:
        """Return the newest segment that continues a checkpoint."""
        for path in sorted(self._segments(), reverse=True):
            base, events = self._read(path)
            if base.checkpoint == checkpoint:
                return path, base, events
        return None

    def _segments(self) -> list[Path]:
        return list(self._folder.glob("journal-*.log"))

    def _open(self, path: Path) -> None:
        """Open a segment for appending after its last complete record."""
        sync(path)  # an earlier process may have died between writing and syncing
        data = path.read_bytes()
        end = sum(FRAME.size + len(payload) for payload in split_records(data))
        if end < len(data):
            log.warning(
                "%s: dropped the last %d of %d bytes, which a crash or the disk left damaged",
                path,
                len(data) - end,
                len(data),
            )
        file = path.open("r+b", buffering=0)
        try:
            self._check()
        except BaseException:
            file.close()
            raise
        file.truncate(end)
        file.seek(end)
        self.close()
        self._file, self._unsynced = file, False

    def _read(self, path: Path) -> tuple[Base, list[RoundEvent]]:
        try:
            first, *rest = split_records(path.read_bytes())
            return unpack(first, Base), [unpack(payload, RoundEvent) for payload in rest]
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise StoreError(f"cannot read {path}: {error}; {REMEDY}") from error

    def _explain_errors(self) -> AbstractContextManager[None]:
        return explain_os_errors(StoreError, f"cannot write the journal to {self._folder}")


def pack(value: Base | Round | RoundEvent) -> bytes:
    """Encode a value as MessagePack; equal values give equal bytes."""
    return msgspec.msgpack.encode(value, enc_hook=_encode, order="deterministic")


def unpack(payload: bytes, type: Any) -> Any:
    return msgspec.msgpack.decode(payload, type=type, dec_hook=_decode)


def _encode(value: Any) -> Any:
    if isinstance(value, Map):
        return sorted(value.items())
    raise NotImplementedError(f"no encoding of {type(value).__name__}")


def _decode(type: Any, value: Any) -> Any:
    if typing.get_origin(type) is Map:
        key, item = typing.get_args(type)
        return Map(msgspec.convert(value, list[tuple[key, item]], dec_hook=_decode))  # type: ignore[valid-type]
    raise NotImplementedError(f"no decoding of {type}")
