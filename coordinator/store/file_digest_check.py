"""Compare files in a run's folder with their digests. Imports no PyTorch."""

from __future__ import annotations

from pathlib import Path

from federated.errors import describe_os_error
from federated.runtime.atomic_files import sha256

__all__ = ["find_damage", "find_problem"]


def find_problem(path: Path, digest: str) -> str:
    """Return why a file is not the one with this sha256, in words that follow its name; empty if it
    is.
    """
    try:
        return find_damage(path, digest)
    except OSError as error:
        return f"cannot be read: {describe_os_error(error)}"


def find_damage(path: Path, digest: str) -> str:
    """Return as `find_problem` does. Raises OSError if the file is there and cannot be read."""
    try:
        found = sha256(path)
    except FileNotFoundError:
        return "is missing"
    return "" if found == digest else f"is damaged: expected sha256 {digest}, found {found}"
