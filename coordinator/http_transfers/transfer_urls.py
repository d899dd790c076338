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

__all__ = ["UPDATES", "WEIGHTS", "TransferUrls", "sign"]

WEIGHTS, UPDATES = "/weights", "/updates"


@dataclass(frozen=True)
class TransferUrls:
    """The addresses of a run's transfers.

    base: address of the server as agents reach it, without a slash at its end.
    secret: key of the signatures.
    above: transfers of more bytes use HTTP, others MQTT.
    """

    base: str
    secret: bytes = field(repr=False)
    above: int = 0

    def name_weights(self, sha256: str, size: int) -> str:
        """Return where to download a blob; empty: over MQTT."""
        return f"{self.base}{WEIGHTS}/{sha256}" if size > self.above else ""

    def name_update(self, path: PurePosixPath, size: int) -> str:
        """Return where to upload an update of `size` bytes; empty: over MQTT. path: of the file, in
        the spool.
        """
        if size <= self.above:
            return ""
        key = sign(self.secret, str(path), size)
        return f"{self.base}{UPDATES}/{path}?size={size}&key={key}"


def sign(secret: bytes, path: str, size: int) -> str:
    """Return the key that permits the upload of `size` bytes to a path."""
    return hmac.new(secret, f"{size} {path}".encode(), hashlib.sha256).hexdigest()
