"""Open the certificate authority of a run's configuration (the folder `broker.pki`, or the default
one), and revoke certificates.

This module imports the package `cryptography` only when it opens an authority, so that commands
which do not need it start fast.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.settings.service_tables import Broker
from federated.errors import StoreError, require_extra

if TYPE_CHECKING:
    from coordinator.access.certificate_authority import Authority

__all__ = ["find_default_folder", "open_authority", "revoke_agents"]


def find_default_folder() -> Path:
    """Return the default folder of the authority. It is in the user's data folder, not in a folder
    of runs, since runs share the authority.
    """
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local/share") / "espalier" / "pki"


def open_authority(wanted: Broker, *, create: bool = True) -> Authority:
    """Open the authority that the configuration names. Raises MissingExtra, ConfigError,
    StoreError.

    create: create it if there is none.
    """
    with require_extra("the certificate authority", "secure"):
        from coordinator.access.certificate_authority import Authority
    folder = Path(wanted.pki) if wanted.pki else find_default_folder()
    if not create and not (folder / "root.pem").exists():
        raise StoreError(f"no certificate authority in {folder}: choose its folder with --pki")
    return Authority(folder, wanted.hosts)


def revoke_agents(wanted: Broker, names: Iterable[str]) -> tuple[dict[str, int], list[str]]:
    """Revoke the certificates of agents. Return agent -> number of its certificates that were
    valid, and the names that were never enrolled. Raises as `open_authority`.
    """
    with closing(open_authority(wanted, create=False)) as authority:
        enrolled = {certificate.name for certificate in authority.registry.list_certificates()}
        known = [name for name in dict.fromkeys(names) if name in enrolled]
        counts = authority.revoke_all(known) if known else {}
    return counts, sorted(set(names) - enrolled)
