"""The weights that an agent holds: those that are here, by digest, and the ones that are on their
way. No torch here.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from pathlib import Path

from federated.device.spool import Spool
from federated.task import Task
from federated.wire import messages, topics
from federated.wire.link import Link
from federated.wire.transfer import Download, RetainedBlob

__all__ = ["CACHED", "Downloads"]

log = logging.getLogger(__name__)

CACHED = 8  # downloads kept on disk: a calibration's weights are the next round's


class Downloads:
    """Downloads in a spool, one under way at a time; at most `cached` are kept, fewer where the
    spool is full.

    shared: by digest, the latest last, where agents of one process share them; else what an earlier
    process left.
    """

    def __init__(
        self, link: Link, spool: Spool, shared: OrderedDict[str, Path] | None, cached: int
    ) -> None:
        self.link, self.spool = link, spool
        self._here = spool.whole() if shared is None else shared
        # of an earlier process: looked at before they are used
        self._unseen = set(self._here) if shared is None else set()
        self._cached = cached
        self._coming: Download | None = None

    def path(self, digest: str) -> Path:
        """Where weights lie that are here."""
        return self._here[digest]

    def fetch(self, task: Task, now: float) -> bool:
        """Begins to fetch the weights of a task, in place of any others; True where they are
        here.
        """
        self.stop()
        if self._find(task.digest):
            return True
        self.spool.only(task.digest)
        base = topics.model(task.run, task.slot, task.submodel.name)
        blob, path = RetainedBlob(base, task.digest, task.size), self.spool.weights(task.digest)
        self._coming = Download(self.link, blob, path, now, sync=self.spool.lasting)
        return False

    def hear(self, topic: str, message: messages.Manifest | messages.Chunk, now: float) -> bool:
        """Takes a message; True once the weights that were fetched are here. Raises Refused, and
        OSError where there is no room for them.
        """
        if self._coming is None or not topic.startswith(self._coming.blob.base + "/"):
            return False
        try:
            if not self._coming.hear(message, now):
                return False
        except OSError:
            self._coming.discard()
            self._coming = None
            raise
        done, self._coming = self._coming, None
        self._take_in(done.blob.sha256, done.path)
        return True

    @property
    def coming(self) -> str:
        """The digest of what is on its way; empty where nothing is."""
        return self._coming.blob.sha256 if self._coming is not None else ""

    @property
    def got(self) -> int:
        """Chunks that are here of what is on its way."""
        return self._coming.got if self._coming is not None else 0

    def tick(self, now: float) -> None:
        """Asks again for what did not come."""
        if self._coming is not None:
            self._coming.tick(now)

    def reach(self, now: float, *, online: bool) -> None:
        """The link went down, or is back."""
        if self._coming is not None:
            self._coming.restored(now) if online else self._coming.interrupted()

    def stop(self) -> None:
        """Gives up what is under way; a lasting spool keeps what came of it."""
        if self._coming is not None:
            self._coming.close() if self.spool.lasting else self._coming.discard()
            self._coming = None

    @property
    def spare(self) -> bool:
        """Whether weights here can be removed, since only this agent has them and can fetch them
        again.
        """
        return self.spool.lasting and bool(self._here)

    def free(self) -> None:
        """Removes all weights that are here."""
        log.warning("no room in %s: older weights are removed", self.spool.folder)
        for digest in list(self._here):
            self._remove(digest)

    def bound(self, used: str) -> None:
        """Keeps the spool within its limit as far as weights go, the oldest first, which can be had
        again; never those that are used.
        """
        while self.spool.excess() and (
            old := next((digest for digest in self._here if digest != used), "")
        ):
            log.info("the spool is full: weights %s are removed", old[:12])
            self._remove(old)

    def _find(self, digest: str) -> bool:
        """Whether weights are here; those of an earlier process only if they are not damaged."""
        path = self._here.get(digest)
        if path is None:
            return False
        if digest in self._unseen and not self.spool.sound(path):
            log.warning("%s is damaged: its weights are fetched again", path)
            self._remove(digest)
            return False
        self._unseen.discard(digest)
        self._here.move_to_end(digest)
        return True

    def _take_in(self, digest: str, path: Path) -> None:
        if digest in self._here:  # another agent was quicker
            path.unlink()
            return
        self._here[digest] = path
        while len(self._here) > self._cached:
            self._remove(next(iter(self._here)))
        self.bound(digest)

    def _remove(self, digest: str) -> None:
        self._unseen.discard(digest)
        self._here.pop(digest).unlink(missing_ok=True)
