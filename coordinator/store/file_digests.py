"""Digests of the files in a run's folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["digest_of", "find_problem"]


def digest_of(path: Path) -> str:
    """Return the sha256 of a file, hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_problem(path: Path, digest: str) -> str:
    """Return why a file is not the one with this sha256, in words that follow its name; empty if it
    is.
    """
    try:
        found = digest_of(path)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return "" if found == digest else f"is damaged: expected sha256 {digest}, found {found}"
