"""Wait until a condition holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["PATIENCE", "eventually"]

Found = TypeVar("Found")
PATIENCE = 240.0  # seconds; on a busy machine, a process takes minutes to start


def eventually(what: Callable[[], Found], seconds: float = PATIENCE) -> Found:
    """Return a function's result as soon as it is true. Fail after a timeout."""
    until = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < until:
        time.sleep(0.02)
    assert found, f"it did not come within {seconds:g} s"
    return found
