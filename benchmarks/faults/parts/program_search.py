"""Find the programs of stores and brokers that trials start."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

__all__ = ["find_program"]


def find_program(name: str) -> str | None:
    """Return a program, first of this Python's environment, since the extra dev installs some in
    the version that trials need; None if there is none.
    """
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    return beside or shutil.which(name)
