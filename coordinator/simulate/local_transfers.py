"""Let simulated devices read large weights from the coordinator's files, and offer their updates as
files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from federated.wire.messages import Grant, Manifest

__all__ = ["LocalTransfers"]

# bytes of weights: messages of an in-memory link are faster below, one file instead of many chunks
# above
ABOVE = 1 << 20


@dataclass(frozen=True)
class LocalTransfers:
    """The addresses of a run's transfers are paths (`Transfers`). spool: of the run."""

    spool: Path

    @property
    def above(self) -> int:
        return ABOVE

    @property
    def origin(self) -> str:
        return "file://"

    @property
    def shared(self) -> bool:
        return False

    @property
    def local(self) -> bool:
        return True

    def find_weights(self, sha256: str) -> str:
        return str(self.spool / f"{sha256}.weights")

    def withdraw(self, sha256: str) -> None:
        """Do nothing: devices have read the weights."""

    def grant(self, place: PurePosixPath, manifest: Manifest) -> Grant:
        raise AssertionError("simulated devices offer files, which need no grant")

    def end(self, place: PurePosixPath) -> None:
        """Do nothing: nobody writes any more."""
