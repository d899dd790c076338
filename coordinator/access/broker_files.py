"""The files of the authority that a broker of somebody else's reads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from coordinator.access.authority import Authority
from coordinator.broker.mosquitto import COORDINATOR, rights
from federated.errors import StoreError

__all__ = ["write_broker_files"]

COPIED = ("ca.pem", "server.pem", "crl.pem")  # of the authority's folder
RIGHTS = "rights.acl"


def write_broker_files(authority: Authority, target: Path) -> None:
    """Writes a broker's files, for nobody else to read; by root they become those of the folder's
    owner. Raises StoreError.
    """
    try:
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = target.stat()
        content = {name: (authority.folder / name).read_bytes() for name in COPIED}
        content[RIGHTS] = rights(COORDINATOR, authority.registry.barred()).encode()
        for name, data in content.items():
            part = target / f".{name}.part"
            part.unlink(missing_ok=True)
            with os.fdopen(
                os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                file.write(data)
                os.fsync(file.fileno())
            if os.geteuid() == 0:
                shutil.chown(part, owner.st_uid, owner.st_gid)
            part.replace(target / name)
    except OSError as error:
        raise StoreError(f"{target}: expected a folder to write to: {error}") from error
