"""Let simulated devices read weights from the coordinator's files, and offer their updates as
files, so that neither are sent.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from federated.http_transfers.http_client import HttpAccess
from federated.wire.messages import Grant, Manifest

__all__ = ["LocalTransfers", "SharedFolder"]


@dataclass(frozen=True)
class SharedFolder(HttpAccess):
    """How a simulated device gives its files to the coordinator: an address is the path of one."""

    def share(self, path: Path) -> str:
        return str(path)


@dataclass(frozen=True)
class LocalTransfers:
    """The addresses of a run's transfers are paths (`Transfers`).

    spool: of the run.
    weights: files of the published weights by digest, where all devices look before they download.
        It keeps the names of files that are gone, so that a thread of the devices finds a name
        twice; a task that needs such a file was given up.
    """

    spool: Path
    weights: OrderedDict[str, Path]

    @property
    def above(self) -> int:
        return 0

    @property
    def origin(self) -> str:
        return "file://"

    @property
    def lost(self) -> str:
        return ""

    @property
    def shared(self) -> bool:
        return False

    @property
    def local(self) -> bool:
        return True

    def find_weights(self, sha256: str) -> str:
        path = self.weights[sha256] = self.spool / f"{sha256}.weights"
        return str(path)

    def withdraw(self, sha256: str) -> None:
        """Do nothing: see `weights`."""

    def grant(self, place: PurePosixPath, manifest: Manifest) -> Grant:
        raise AssertionError("simulated devices offer files, which need no grant")

    def end(self, place: PurePosixPath) -> None:
        """Do nothing: nobody writes any more."""
