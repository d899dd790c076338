"""Locate the agent's persistent files: in `$ESPALIER_STATE`, or else `$XDG_STATE_HOME/espalier`,
or else `~/.local/state/espalier`.
"""

from __future__ import annotations

import os
from pathlib import Path

from federated.errors import StoreError

__all__ = ["IN_HOME", "SPOOL", "folder"]

IN_HOME = ".local/state/espalier"
SPOOL = "spool"  # folder of weights and updates


def folder() -> Path:
    """Return the folder, which may not exist yet. StoreError: the user has no home."""
    if named := os.environ.get("ESPALIER_STATE"):
        return Path(named)
    if states := os.environ.get("XDG_STATE_HOME"):
        return Path(states) / "espalier"
    try:
        return Path.home() / IN_HOME
    except RuntimeError as error:
        raise StoreError(
            "this user has no home directory; set ESPALIER_STATE to a folder for the agent's state"
        ) from error
