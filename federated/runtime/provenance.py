"""Find the provenance of a result: the commit of this checkout, and versions of packages."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["commit", "versions"]

# what saving a result changes, and with it the documentation: not the code that is measured
RESULTS = ("benchmarks/results", "docs", "README.md", "SECURITY.md")


def commit() -> str:
    """Return the commit of this checkout, with `+` if files other than results and documentation
    differ from it; empty without one.
    """
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        return subprocess.run(  # noqa: S603
            ["git", "-C", str(here), *words],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    try:
        # in the checkout of another project, this file is not tracked
        git("ls-files", "--error-unmatch", Path(__file__).name)
        others = [":(top)", *(f":(top,exclude){path}" for path in RESULTS)]
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *others)
        return git("rev-parse", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return ""


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed version of each package; empty if it is not installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found
