"""Name the files of received updates in a run's spool folder. Imports no numpy."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from federated.task import Key

__all__ = ["TEMPORARY", "name_file", "update_path"]

TEMPORARY = "now"  # folder of the spool for updates that are not kept once they are folded


@lru_cache(maxsize=1024)  # each update needs it several times
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
