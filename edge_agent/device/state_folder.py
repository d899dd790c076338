"""Locate the agent's persistent files: in `$ESPALIER_STATE`, or else `$XDG_STATE_HOME/espalier`,
or else `~/.local/state/espalier`.
"""

from __future__ import annotations

import os
from pathlib import Path

from federated.errors import StoreError

__all__ = ["ENERGY", "IN_HOME", "SPOOL", "TRAFFIC", "find_folder", "locate_state"]

IN_HOME = ".local/state/espalier"
SPOOL = "spool"  # folder of weights and updates
TRAFFIC = "traffic.json"  # file of the bytes sent and received in each month
ENERGY = "energy.json"  # file of the joules of training in each month


def locate_state() -> Path:
    """Return the folder of the state, which may not exist yet. StoreError: the user has no home."""
    try:
        return find_folder("ESPALIER_STATE", "XDG_STATE_HOME", IN_HOME)
    except RuntimeError as error:
        raise StoreError(
            "this user has no home directory; set ESPALIER_STATE to a folder for the agent's state"
        ) from error


def find_folder(own: str, common: str, in_home: str) -> Path:
    """Return one of the user's folders, which may not exist yet.

    own, common: environment variables with the folder itself, and with its parent
    in_home: path below the home, if neither is set
    RuntimeError: the user has no home.
    """
    if named := os.environ.get(own):
        return Path(named)
    if base := os.environ.get(common):
        return Path(base) / "espalier"
    return Path.home() / in_home
