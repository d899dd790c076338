"""Names of the members of an extension point that tests check."""

from __future__ import annotations

import os
from collections.abc import Iterable

__all__ = ["list_tried"]


def list_tried(kind: str, built_in: Iterable[str]) -> tuple[str, ...]:
    """Return the names in the variable TRY_KIND, such as TRY_METHOD=module:function; without it,
    the built-in ones.
    """
    return tuple(os.environ.get(f"TRY_{kind.upper()}", "").split()) or tuple(built_in)
