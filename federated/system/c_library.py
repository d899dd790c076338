"""Call functions of the C library that only some systems have."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

__all__ = ["find_function"]


@cache
def find_function(name: str) -> Any:
    """Return a function of the C library, which sets `ctypes.get_errno`; None if this system lacks
    it.
    """
    try:
        return getattr(ctypes.CDLL(None, use_errno=True), name, None)
    except (TypeError, OSError):  # Windows has no library of that kind
        return None
