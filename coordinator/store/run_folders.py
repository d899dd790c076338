"""Find runs in the folder of runs: list them, and choose the latest one or the one in progress."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

from coordinator.store import run_lock
from federated.errors import StoreError
from federated.flag_and_argument_names import RUNS, Spell

__all__ = [
    "DATABASE",
    "describe_missing",
    "find_current_run",
    "find_latest_run",
    "list_runs",
    "make_missing_error",
]

DATABASE = "run.sqlite"


def list_runs(root: Path) -> list[str]:
    """Return the names of the runs below `root`, the latest last."""
    return [
        path.parent.name
        for path in sorted(root.glob(f"*/{DATABASE}"), key=lambda p: p.stat().st_mtime)
    ]


def find_latest_run(root: Path) -> str:
    """Return the run that was changed last. Raises StoreError if there is none."""
    found = list_runs(root)
    if not found:
        raise StoreError.naming(lambda spell: describe_missing(root, spell=spell))
    return found[-1]


def find_current_run(root: Path) -> str:
    """Return the run in progress, the latest if there are several; otherwise the latest run. Raises
    StoreError if there is none.
    """
    held = (name for name in reversed(list_runs(root)) if run_lock.is_held(root / name))
    return next(held, "") or find_latest_run(root)


def describe_missing(root: Path, name: str = "", spell: Spell = attrgetter("flag")) -> str:
    """Say that there is no run, or none of this name, below `root`, and name the existing ones. The
    path helps those who are in another folder than they think. spell: returns an option as the
    reader spells it.
    """
    text = f"no run '{name}' in the folder {root}" if name else f"no run in the folder {root}"
    found = list_runs(root)
    if found and name:
        return f"{text}; existing runs: {', '.join(found)}"
    where = text if root.is_dir() else f"{text} ({root.absolute()} is not a folder)"
    return f"{where}; choose the folder of the runs with {spell(RUNS)}"


def make_missing_error(folder: Path) -> StoreError:
    """Return the error for a missing run, which names the existing ones."""
    return StoreError.naming(lambda spell: describe_missing(folder.parent, folder.name, spell))
