"""Name the addresses at which agents download weights and upload updates over HTTP(S).

BASE/weights/SHA256                      weights, for everybody who knows their digest, which the
                                         coordinator tells its agents
BASE/updates/FOLDER/NAME?size=N&key=KEY  one update, while a task expects it; the key authenticates
                                         the path and the size, and only its agent is told the
                                         address
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Protocol
from urllib.parse import urlsplit

from federated.wire.messages import Grant, Manifest

__all__ = ["UPDATES", "WEIGHTS", "TransferUrls", "Transfers", "find_origin", "sign"]

WEIGHTS, UPDATES = "/weights", "/updates"


class Transfers(Protocol):
    """How a run's weights and updates travel over HTTP. No method waits for a server. The file of
    an update, in the spool, permits its upload and grows as its bytes come.
    """

    @property
    def above(self) -> int:
        """Transfers of more bytes use HTTP, others MQTT."""

    @property
    def origin(self) -> str:
        """Scheme, host and port of the addresses."""

    @property
    def lost(self) -> str:
        """Why a store that the transfers need cannot be used at present; empty: it can."""

    def find_weights(self, sha256: str) -> str:
        """Return where agents download weights that are in the spool; empty: nowhere yet."""

    def withdraw(self, sha256: str) -> None:
        """End the downloads of weights."""

    def grant(self, place: PurePosixPath, manifest: Manifest) -> Grant:
        """Return where an agent uploads an update. place: of its file, in the spool."""

    def end(self, place: PurePosixPath) -> None:
        """Let nothing more come to a file in the spool."""

    @property
    def shared(self) -> bool:
        """Whether others than its agent may replace what is uploaded, before it is here."""

    @property
    def local(self) -> bool:
        """Whether agents are on this machine, in this process, so that they offer their updates as
        complete files, which need not be verified.
        """


@dataclass(frozen=True)
class TransferUrls:
    """The addresses of a run's transfers at the coordinator's own server (`Transfers`).

    base: address of the server as agents reach it, without a slash at its end.
    secret: key of the signatures.
    above: transfers of more bytes use HTTP, others MQTT.
    """

    base: str
    secret: bytes = field(repr=False)
    above: int = 0

    @property
    def lost(self) -> str:
        return ""

    @property
    def shared(self) -> bool:
        return False

    @property
    def local(self) -> bool:
        return False

    @property
    def origin(self) -> str:
        return find_origin(self.base)

    def find_weights(self, sha256: str) -> str:
        return f"{self.base}{WEIGHTS}/{sha256}"

    def withdraw(self, sha256: str) -> None:
        """Do nothing: the server has the weights as long as their file is there."""

    def grant(self, place: PurePosixPath, manifest: Manifest) -> Grant:
        return Grant(manifest.transfer, b"", True, self.name_update(place, manifest.size))

    def end(self, place: PurePosixPath) -> None:
        """Do nothing: an upload ends once its file is removed."""

    def name_update(self, path: PurePosixPath, size: int) -> str:
        """Return where to upload an update of `size` bytes."""
        key = sign(self.secret, str(path), size)
        return f"{self.base}{UPDATES}/{path}?size={size}&key={key}"


def find_origin(url: str) -> str:
    """Return the scheme, host and port of an address."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def sign(secret: bytes, path: str, size: int) -> str:
    """Return the key that permits the upload of `size` bytes to a path."""
    return hmac.new(secret, f"{size} {path}".encode(), hashlib.sha256).hexdigest()
