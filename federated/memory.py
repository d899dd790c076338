"""What a device keeps between rounds of a run (a variate, its last network, layers of its own), on its own disk, without PyTorch.

One file per round that was trained. A task says of which round the coordinator took this device's last update, and what that round left is what
counts: not what an update left that was lost, refused or late, nor a round that a coordinator which came back knows nothing of. So neither side
need be told that the other one was killed, and a round that is done again starts from the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from federated import disk
from federated.wire import tensors

__all__ = ["FOLDER", "prune", "read", "write"]

FOLDER = "memory"  # beside a device's spooled updates
SUFFIX = ".kept"


def read(folder: Path, since: int) -> dict[str, NDArray[Any]]:
    """What round `since` left; nothing where that is 0, or where this disk knows nothing of it."""
    path = folder / f"{since}{SUFFIX}"
    return dict(tensors.decode(path.read_bytes())[1]) if since and path.exists() else {}


def write(folder: Path, round: int, values: Mapping[str, NDArray[Any]], *, since: int) -> None:
    """What a round leaves, beside what it started from: no other will be asked for again."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    disk.write(folder / f"{round}{SUFFIX}", tensors.encode({}, values))
    prune(folder, since, round)


def prune(folder: Path, *rounds: int) -> None:
    """Forgets all but what these rounds left."""
    known = {f"{round}{SUFFIX}" for round in rounds}
    for path in folder.glob("*"):
        if path.name not in known:
            path.unlink()
