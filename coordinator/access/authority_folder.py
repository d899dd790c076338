"""Where the fleet's certificate authority lies, and how it is opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.settings.services import Broker
from federated.errors import MissingExtra

if TYPE_CHECKING:
    from coordinator.access.authority import Authority

__all__ = ["default_folder", "open_authority"]


def default_folder() -> Path:
    """Where the authority lies when nobody says where: with this user's data, whatever folder runs
    are kept in.
    """
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local/share") / "espalier" / "pki"


def open_authority(wanted: Broker) -> Authority:
    """The authority that a configuration names. Raises MissingExtra, ConfigError."""
    try:
        from coordinator.access.authority import Authority
    except ModuleNotFoundError as error:
        raise MissingExtra("--tls", "secure", error.name or "cryptography") from error
    return Authority(Path(wanted.pki) if wanted.pki else default_folder(), wanted.hosts)
