"""What a device keeps between rounds of a run (a variate, its last network, layers of its own), on its own disk, without PyTorch.

One file per round that was trained. Work on round r reads the newest of an earlier round, so a round that is done again starts from the same;
what a round leaves is taken up once the coordinator has the update, and forgotten with an update that nobody wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from federated.wire import tensors

__all__ = ["FOLDER", "confirm", "read", "write"]

FOLDER = "memory"  # beside a device's spooled updates
KEPT = 2  # the last round may have to be done again


def read(folder: Path, round: int) -> dict[str, NDArray[Any]]:
    """What is known to work on a round; nothing, at first."""
    earlier = [path for path in folder.glob("*.kept") if int(path.stem) < round]
    return dict(tensors.decode(max(earlier, key=number).read_bytes())[1]) if earlier else {}


def write(folder: Path, round: int, values: Mapping[str, NDArray[Any]]) -> None:
    """What a round leaves, until it is confirmed of no effect."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{round}.new").write_bytes(tensors.encode({}, values))


def confirm(folder: Path, round: int) -> None:
    """The coordinator took the round's update: from now on what it left counts."""
    new = folder / f"{round}.new"
    if new.exists():
        new.replace(folder / f"{round}.kept")
        for old in sorted(folder.glob("*.kept"), key=number)[:-KEPT]:
            old.unlink()


def number(path: Path) -> int:
    return int(path.stem)
