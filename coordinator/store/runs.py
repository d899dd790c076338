"""Which runs there are: one folder each, with a database in it."""

from __future__ import annotations

from pathlib import Path

from coordinator.store import run_lock
from federated.errors import StoreError

__all__ = ["DATABASE", "absent", "current_run", "latest_run", "no_run", "run_names"]

DATABASE = "run.sqlite"


def run_names(root: Path) -> list[str]:
    """The runs below `root`, the latest last."""
    return [
        path.parent.name
        for path in sorted(root.glob(f"*/{DATABASE}"), key=lambda p: p.stat().st_mtime)
    ]


def latest_run(root: Path) -> str:
    """The run to go on with. Raises StoreError when there is none."""
    found = run_names(root)
    if not found:
        raise StoreError(f"nothing to resume: {no_run(root)}")
    return found[-1]


def current_run(root: Path) -> str:
    """The run that is under way, the latest where there are several; else the latest. Raises
    StoreError where there is none.
    """
    found = run_names(root)
    if not found:
        raise StoreError(no_run(root))
    return next((name for name in reversed(found) if run_lock.held(root / name)), found[-1])


def no_run(root: Path, name: str = "") -> str:
    """That no run, or none of a name, is below `root`, in words; whoever is in another folder than
    yesterday sees that.
    """
    said = f"no run '{name}' in {root}" if name else f"no run in {root}"
    return (
        said
        if root.is_dir()
        else f"{said} ({root.absolute()} is no folder): --runs DIR says where runs are kept"
    )


def absent(folder: Path) -> StoreError:
    """That there is no such run, and which there are."""
    said, root = no_run(folder.parent, folder.name), folder.parent
    return StoreError(
        f"{said}; there are: {', '.join(run_names(root)) or 'none'}" if root.is_dir() else said
    )
