"""Wait until a condition holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["eventually"]

Found = TypeVar("Found")


def eventually(what: Callable[[], Found], seconds: float = 90.0) -> Found:
    """Return a function's result as soon as it is true. Fail after a timeout."""
    until = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < until:
        time.sleep(0.02)
    assert found, f"it did not come within {seconds:g} s"
    return found
