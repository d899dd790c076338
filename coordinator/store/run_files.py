"""Compare files in a run's folder with their digests, and name the files of received updates.
Imports no PyTorch.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from federated.errors import describe_os_error
from federated.runtime.atomic_files import sha256
from federated.task import Key

__all__ = ["TEMPORARY", "find_problem", "name_file", "update_path"]

TEMPORARY = "now"  # folder of the spool for updates that are not kept once they are folded


def find_problem(path: Path, digest: str) -> str:
    """Return why a file is not the one with this sha256, in words that follow its name; empty if it
    is.
    """
    try:
        found = sha256(path)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {describe_os_error(error)}"
    return "" if found == digest else f"is damaged: expected sha256 {digest}, found {found}"


def update_path(spool: Path, key: Key) -> Path:
    """Return where an update lies once it is complete: those of a training by round, all others
    together.
    """
    folder = f"round-{key.round:06d}" if key.work == "train" else TEMPORARY
    return spool / folder / name_file(key)


def name_file(key: Key) -> str:
    """Return a file name that does not depend on the transfer's own name: no two transfers share a
    file, and a later process finds it.
    """
    return f"{hashlib.sha256('/'.join(map(str, key)).encode()).hexdigest()[:32]}.update"
