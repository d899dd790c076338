"""Put weights into a store, and sign the addresses at which agents download them.

weights/SHA256    weights or a training graph

What the store has lost is put there again while agents may need it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coordinator.http_transfers.object_store import ObjectStore
from coordinator.http_transfers.store_thread import StoreThread

__all__ = ["StoredWeights"]

log = logging.getLogger(__name__)

FOLDER = "weights/"
LOOK = 10.0  # seconds between two looks for weights that the store has lost


@dataclass
class Wanted:
    """Weights that agents may download.

    url: where; empty: they are not in the store yet.
    renewed: time when another address takes its place, in seconds.
    """

    url: str = ""
    renewed: float = 0.0


class StoredWeights:
    """The weights of a run in a store."""

    def __init__(
        self,
        store: ObjectStore,
        spool: Path,
        expiry: int,
        leads: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Remove the weights of an earlier process. spool: folder of their files. expiry: seconds
        for which an address is valid. leads: whether no other coordinator took over the run; one
        that did needs the same objects.
        """
        self._leads = leads
        self._store, self._spool, self._expiry, self._clock = store, spool, expiry, clock
        self._lock = threading.Lock()
        self._wanted = dict[str, Wanted]()  # by digest
        # what to put into the store, and digests to remove from it, in order
        self._jobs = deque[tuple[str, Wanted | None]]()
        self._swept = False
        self._looked = clock()
        self._thread = StoreThread("weights for the store", self._work)
        self._thread.start()

    def find(self, sha256: str) -> str:
        """Return the address of weights whose file is in the spool; empty: they are not in the
        store yet. Each address is valid for at least half of `expiry`. Raises StoreFailure if it
        cannot be signed.
        """
        with self._lock:
            wanted = self._wanted.get(sha256)
            if wanted is None:
                self._wanted[sha256] = wanted = Wanted()
                self._jobs.append((sha256, wanted))
                self._thread.wake()
            if wanted.url and self._clock() >= wanted.renewed:
                self._sign(sha256, wanted)
            return wanted.url

    def withdraw(self, sha256: str) -> None:
        """Remove weights from the store."""
        with self._lock:
            if self._wanted.pop(sha256, None) is not None:
                self._jobs.append((sha256, None))
                self._thread.wake()

    @property
    def wanted(self) -> bool:
        """Whether agents may download weights."""
        return bool(self._wanted)

    def close(self) -> None:
        self._thread.close()

    def _sign(self, sha256: str, wanted: Wanted) -> None:
        now = self._clock()
        wanted.url = self._store.sign_get(FOLDER + sha256, self._expiry)
        wanted.renewed = now + self._expiry / 2

    def _work(self) -> float | None:
        if not self._leads():
            return None
        if not self._swept:
            self._store.delete(self._store.list(FOLDER))
            self._swept = True
        while self._jobs and not self._thread.closed and self._leads():
            sha256, wanted = self._jobs[0]
            if wanted is None:
                self._store.delete([FOLDER + sha256])
            elif self._wanted.get(sha256) is wanted:
                self._put(sha256, wanted)
            self._jobs.popleft()
        if self._clock() - self._looked >= LOOK:
            self._restore()
            self._looked = self._clock()
        return LOOK if self._wanted else None

    def _restore(self) -> None:
        """Put weights that the store has lost there again."""
        with self._lock:
            stored = {sha256: wanted for sha256, wanted in self._wanted.items() if wanted.url}
        found = self._store.list(FOLDER) if stored else {}
        for sha256, wanted in stored.items():
            # what is withdrawn meanwhile is removed by a later job
            if FOLDER + sha256 not in found and not self._thread.closed:
                log.warning("the store has lost weights %s: storing them again", sha256[:16])
                self._put(sha256, wanted)

    def _put(self, sha256: str, wanted: Wanted) -> None:
        try:
            self._store.put(FOLDER + sha256, self._spool / f"{sha256}.weights")
        except FileNotFoundError:  # withdrawn meanwhile
            return
        with self._lock:
            self._sign(sha256, wanted)
