"""Folders that the tests of all workers share, since their content takes seconds to make."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from federated.system.file_locks import lock_file

__all__ = ["share_folder"]


def share_folder(name: str, base: Path, make: Callable[[Path], object]) -> Path:
    """Return a folder. The first test that needs it makes it, while others wait.

    base: folder of the temporary files of this worker, the parent of each test's.
    make: fills the folder, which is moved afterwards.
    """
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    place.mkdir(exist_ok=True)
    made, part = place / name, place / f"{name}.part"
    with (place / f"{name}.lock").open("w") as lock:
        lock_file(lock.fileno(), wait=True)
        if not made.exists():
            shutil.rmtree(part, ignore_errors=True)  # of a test that failed
            part.mkdir()
            make(part)
            part.rename(made)
    return made
