"""Where an agent keeps what must outlive it: in `$ESPALIER_STATE`, else `$XDG_STATE_HOME/espalier`,
else `~/.local/state/espalier`.
"""

from __future__ import annotations

import os
from pathlib import Path

from federated.errors import StoreError

__all__ = ["folder"]


def folder() -> Path:
    """The folder, which need not exist yet. Raises StoreError for a user without a home."""
    if named := os.environ.get("ESPALIER_STATE"):
        return Path(named)
    if states := os.environ.get("XDG_STATE_HOME"):
        return Path(states) / "espalier"
    try:
        return Path.home() / ".local/state/espalier"
    except RuntimeError as error:
        raise StoreError(
            "this user has no home to keep things in: name a folder by ESPALIER_STATE"
        ) from error
