"""Describe the transfer of one update to the coordinator, and measure its speed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from coordinator.fleet.uploaded_file import UploadedFile
from coordinator.http_transfers.transfer_urls import Transfers
from coordinator.update_workers.worker_pool import WorkerTransfer
from federated.wire import messages
from federated.wire.partial_file import PART, PartialFile

__all__ = ["IDLE", "Transfer", "find_place"]

IDLE = 30.0  # seconds over which a transfer's speed is measured while others wait for its slot


@dataclass
class Transfer:
    """The transfer of one update.

    agent: its sender.
    offer: what the agent announced.
    partial: the bytes received so far.
    progressed: when the last new chunk arrived, in the coordinator's seconds.
    urls: of uploads over HTTP; None: there are none.
    damaged: times that its digest was wrong.
    since: when the current measurement of its speed began.
    got: chunks received by then.
    seen: bytes that had come elsewhere when this was last checked.
    """

    agent: str
    offer: messages.Offer
    partial: PartialFile | UploadedFile | WorkerTransfer
    progressed: float
    urls: Transfers | None = None
    damaged: int = 0
    since: float = 0.0
    got: int = 0
    seen: int = 0

    def begin(self, now: float) -> None:
        """Begin a new measurement of its speed."""
        self.since, self.got = now, self.partial.received

    def pace(self, now: float) -> float:
        """Return bytes per second since `since`; 0 if no chunk arrived for IDLE seconds, infinite
        if it is too early to tell.
        """
        if now - self.progressed > IDLE:
            return 0.0
        if now - self.since <= IDLE:
            return math.inf
        return (self.partial.received - self.got) * self.offer.manifest.chunk / (now - self.since)

    @property
    def promised(self) -> int:
        """Bytes that it will still take on the disk: the file of an upload grows only as bytes
        come, and a worker may not have reserved the room for its file yet.
        """
        match self.partial:
            case UploadedFile(size=size):
                return self.offer.manifest.size - size
            case WorkerTransfer(begun=False):
                return self.offer.manifest.size
        return 0

    def grant(self) -> messages.Grant | None:
        """Return the grant of a slot, with the bitmap of the chunks that are here, or where to
        upload the update; None if a worker sends it.
        """
        partial, manifest = self.partial, self.offer.manifest
        if isinstance(partial, WorkerTransfer):
            partial.resume()
            return None
        if isinstance(partial, UploadedFile) and self.urls is not None:
            return self.urls.grant(find_place(partial.path), manifest)
        return messages.Grant(manifest.transfer, partial.acknowledge(), True)


def find_place(path: Path) -> PurePosixPath:
    """Return where the bytes of an update are while they come over HTTP, in the spool. path: its
    file once it is complete.
    """
    return PurePosixPath(path.parent.name, path.name + PART)
