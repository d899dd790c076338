"""A function of the user's, by its name "module:function": the largest network, or data."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["imported"]


def imported(name: str) -> Callable[..., Any]:
    """What "module:function" names; the module may lie where the command was called. ValueError: it
    cannot be imported, or called.
    """
    module, _, attribute = name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        # a command installed by pip does not look where it was called
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a module of a user's own raises
        raise ValueError(f"'{name}' cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ValueError(f"'{name}' is a {type(found).__name__}; expected a function")
    return found  # type: ignore[no-any-return]
