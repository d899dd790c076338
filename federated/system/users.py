"""Find the user that runs this process."""

from __future__ import annotations

import os

__all__ = ["find_user", "is_root"]


def find_user() -> int:
    """Return the number of the user that runs this process; 0 on a system without numbers."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def is_root() -> bool:
    """Return True if this process runs as root."""
    return hasattr(os, "geteuid") and os.geteuid() == 0
