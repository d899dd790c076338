"""Where a result comes from: the commit of this checkout, and the versions of what it ran on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["commit", "versions"]


def commit() -> str:
    """The commit of this checkout, with `+` where files differ from it; empty outside of one."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        return subprocess.run(  # noqa: S603
            ["git", "-C", str(here), *words],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    try:
        # installed into another project's checkout, its commit is not ours
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + (
            "+" if git("status", "--porcelain", "--untracked-files=no") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return ""


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The installed version of each; empty where it is not."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found
