"""Find the built web pages, which have a distribution of their own (the extra `web`)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from federated.errors import MissingExtra

__all__ = ["PACKAGE", "find_page"]

PACKAGE = "espalier_web"


def find_page(command: str) -> Path:
    """Return the folder of the built pages. command: that needs them. Raises MissingExtra."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise MissingExtra(command, "web", PACKAGE, "in a clone: make web")
    return Path(found.origin).parent / "static"
