"""Collect updates that agents put into a store, part by part, into the files that expect them.

updates/FOLDER/NAME/SHA256/PART    bytes of an update: its file in the spool, the first digits of
                                   its digest, and the number of the part

Nothing in the store is taken as a fact: a part of another size is removed, and an update counts
only with the digest that its agent offered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path, PurePosixPath

from coordinator.http_transfers.object_store import ObjectStore, StoreFailure
from coordinator.http_transfers.store_thread import StoreThread
from federated.wire.messages import MAX_PARTS, Grant, Manifest, Part

__all__ = ["StoredUpdates"]

log = logging.getLogger(__name__)

FOLDER = "updates/"
SMALLEST = 1 << 20  # bytes of a part, except the last one
MOST = 64  # parts of an update
LOOK = 1.0  # seconds between two looks into the store while updates are expected
FAILURES = 3  # times that the store may fail to return a part
# seconds until what nobody expects is removed: after a restart, agents offer their updates again
STRAY = 60.0
STRAY_LOOK = 10.0  # seconds between looks while there is only that


@dataclass(eq=False)
class Expected:
    """An update that an agent may put into the store.

    manifest: as offered.
    path: the file that its bytes are appended to. Removing it ends the permission.
    folder: of its parts, in the store.
    seen: numbers of the parts that are in the store.
    failures: times in a row that the store did not return the next part.
    """

    manifest: Manifest
    path: Path
    folder: str
    seen: set[int] = field(default_factory=set)
    failures: int = 0

    @property
    def part(self) -> int:
        """Bytes of each part but the last."""
        return max(SMALLEST, -(-self.manifest.size // MOST))

    def measure(self, number: int) -> int:
        """Return the bytes of a part."""
        return min(self.part, self.manifest.size - number * self.part)

    def name(self, number: int) -> str:
        return f"{self.folder}{number:05}"

    def count(self) -> int:
        """Return how many parts the file has. Raises FileNotFoundError if none is expected."""
        size = self.path.stat().st_size
        return -(-size // self.part) if size == self.manifest.size else size // self.part


class StoredUpdates:
    """The updates of a run that agents put into a store."""

    def __init__(
        self,
        store: ObjectStore,
        spool: Path,
        expiry: int,
        leads: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """spool: folder of the files. expiry: seconds for which an address is valid. leads: whether
        no other coordinator took over the run; one that did collects into the same files.
        """
        self._leads = leads
        self._store, self._spool, self._expiry, self._clock = store, spool, expiry, clock
        self._lock = threading.Lock()
        self._expected = dict[PurePosixPath, Expected]()
        self._strays = dict[str, float]()  # keys that nobody expects, and since when
        self._thread = StoreThread("updates from the store", self._work)
        self._thread.start()

    def grant(self, place: PurePosixPath, manifest: Manifest) -> Grant:
        """Return the addresses of the next parts that are not in the store. If there is none, the
        agent waits. Raises StoreFailure if they cannot be signed.
        """
        with self._lock:
            found = self._expected.get(place)
            if found is None or found.manifest != manifest:
                folder = f"{FOLDER}{place}/{manifest.sha256[:16]}/"
                found = Expected(manifest, self._spool / place, folder)
                self._expected[place] = found
        self._thread.wake()
        first, parts = found.count(), list[Part]()
        for number in range(first, -(-manifest.size // found.part)):
            if number not in found.seen and len(parts) < MAX_PARTS:
                size = found.measure(number)
                url = self._store.sign_put(found.name(number), size, self._expiry)
                parts.append(Part(number * found.part, size, url))
        return Grant(manifest.transfer, b"", bool(parts), parts=tuple(parts))

    def end(self, place: PurePosixPath) -> None:
        """Collect nothing more into a file. Its name may be used for another one then."""
        with self._lock:
            self._expected.pop(place, None)

    def close(self) -> None:
        self._thread.close()

    # ---- the thread ------------------------------------------------------------------------------

    def _work(self) -> float | None:
        if not self._leads():
            return None
        with self._lock:
            expected = dict(self._expected)
        if not expected and not self._strays:
            return None
        found = self._store.list(FOLDER)
        for place, one in expected.items():
            mine = {key: size for key, size in found.items() if key.startswith(one.folder)}
            for key in mine:
                del found[key]
            try:
                whole = self._collect(one, mine)
            except FileNotFoundError:  # not expected any more
                whole = True
            except StoreFailure as error:  # the other updates can be collected
                self._count_failure(one, error)
                whole = False
            if whole:
                self._forget(place, one)
                self._store.delete(mine)
        self._remove_strays(found)
        return LOOK if expected else STRAY_LOOK

    def _count_failure(self, one: Expected, error: StoreFailure) -> None:
        """Remove the next part of an update, so that its agent sends it again, if the store failed
        to return it several times in a row.
        """
        one.failures += 1
        if one.failures == FAILURES:
            one.failures, key = 0, one.name(one.count())
            log.warning("removing %s, which the store does not return: %s", key, error)
            self._store.delete([key])

    def _forget(self, place: PurePosixPath, one: Expected) -> None:
        with self._lock:
            if self._expected.get(place) is one:
                del self._expected[place]

    def _collect(self, one: Expected, found: dict[str, int]) -> bool:
        """Append the parts that follow to the file of an update, and remove them from the store and
        from `found`. Return whether the update is whole. Raises FileNotFoundError if it is not
        expected any more, OSError if the disk is full.
        """
        number, total = one.count(), -(-one.manifest.size // one.part)
        self._remove_wrong(one, found, number)
        one.seen = {seen for seen in range(number, total) if one.name(seen) in found}
        while number < total and number in one.seen and self._may_go_on():
            key = one.name(number)
            if not self._append(one, number):
                log.warning("removed a part of another size than allowed: %s", key)
            one.failures = 0
            one.seen.discard(number)  # the coordinator may start the file over at any time
            if not self._may_go_on():
                return False
            self._store.delete([key])
            del found[key]
            number = one.count()
        return number == total

    def _may_go_on(self) -> bool:
        return not self._thread.closed and self._leads()

    def _is_expected(self, one: Expected) -> bool:
        with self._lock:
            return one in self._expected.values()

    def _remove_wrong(self, one: Expected, found: dict[str, int], first: int) -> None:
        """Remove the parts that are not needed, or have another size than was permitted."""
        total = -(-one.manifest.size // one.part)
        needed = {one.name(number): one.measure(number) for number in range(first, total)}
        for key, size in list(found.items()):
            if needed.get(key) != size:
                if key in needed:
                    log.warning("removed %s: expected %d bytes, found %d", key, needed[key], size)
                self._store.delete([key])
                del found[key]

    def _append(self, one: Expected, number: int) -> bool:
        """Append a part to a file, and return whether it has the right size. Raises
        FileNotFoundError if it is not expected any more.
        """
        start, expected, taken = number * one.part, one.measure(number), 0
        with FileIO(one.path, "r+") as file:  # makes no file
            if not self._is_expected(one):  # it may be another file of this name
                raise FileNotFoundError
            file.truncate(start)  # after a crash, there may be a piece of the part
            file.seek(start)
            for piece in self._store.read(one.name(number)):
                taken += len(piece)
                if taken > expected:
                    break
                view = memoryview(piece)
                while view := view[file.write(view) :]:
                    pass
            if taken != expected:
                file.truncate(start)
        return taken == expected

    def _remove_strays(self, found: dict[str, int]) -> None:
        """Remove objects that nobody expects for a while."""
        now = self._clock()
        self._strays = {key: self._strays.get(key, now) for key in found}
        old = [key for key, since in self._strays.items() if now - since >= STRAY]
        self._store.delete(old)
        for key in old:
            del self._strays[key]
