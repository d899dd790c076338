"""Write the files that an external broker needs (certificates, revocation list and access control
list), for `coordinator authority --for-broker DIR`.
"""

from __future__ import annotations

import os
from pathlib import Path

from coordinator.access.certificate_authority import Authority
from coordinator.access.run_rights import list_exclusions
from coordinator.broker.local_broker import ACL_FILE
from coordinator.broker.mosquitto_config import Rights, format_acl
from federated.errors import ConfigError, explain_os_errors
from federated.system.users import is_root

__all__ = ["write_broker_files"]

COPIED = ("ca.pem", "server.pem", "crl.pem")  # from the authority's folder


def write_broker_files(authority: Authority, target: Path) -> None:
    """Write the files of an external broker, readable by the owner only; if run as root, they are
    given to the owner of the folder. Raises ConfigError.
    """
    with explain_os_errors(
        ConfigError, f"cannot write the broker's files to {target}", remedy="choose another folder"
    ):
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = target.stat()
        content = {name: (authority.folder / name).read_bytes() for name in COPIED}
        registry = authority.registry
        rights = Rights(registry.list_barred(), list_exclusions(registry))
        content[ACL_FILE] = format_acl(authority.user, rights).encode()
        for name, data in content.items():
            part = target / f".{name}.part"
            part.unlink(missing_ok=True)
            with os.fdopen(
                os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                if is_root():  # not by name: the folder's owner might replace it with a link
                    os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
                file.write(data)
                os.fsync(file.fileno())
            part.replace(target / name)
