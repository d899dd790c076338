"""Wheels of earlier versions of this project, built from the history of the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["AT_PROTOCOL_2", "AT_PROTOCOL_3", "build_wheel", "extract_commit", "unpack_wheel"]

ROOT = Path(__file__).parents[2]
AT_PROTOCOL_2 = "23455356b48af0863bb75c56e8231ab109ee6df3"  # the last commit of protocol 2
AT_PROTOCOL_3 = "558e45b10f3faec0e845a8097c21ee765f144557"  # the last one without addresses


def extract_commit(commit: str, folder: Path) -> Path:
    """Extract the files of a commit into a new folder, and return it. Skip the test where the
    repository does not have the commit: in an sdist, or a shallow clone.
    """
    known = ["git", "-C", str(ROOT), "cat-file", "-e", f"{commit}^{{commit}}"]
    try:
        found = subprocess.run(known, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        found = False
    if not found:
        pytest.skip(f"needs the project's git history, with the commit {commit[:12]}")
    folder.mkdir()
    archive = folder / "archive.tar"
    git = ["git", "-C", str(ROOT), "archive", "--output", str(archive), commit]
    subprocess.run(git, check=True)
    subprocess.run(["tar", "-xf", archive.name], cwd=folder, check=True)
    archive.unlink()
    return folder


def build_wheel(source: Path, folder: Path) -> Path:
    """Build a wheel of a source tree into a folder, without a network, and return its path."""
    words = ["wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run(
        [sys.executable, "-m", "pip", *words, "--wheel-dir", str(folder), str(source)],
        check=True,
    )
    return next(folder.glob("*.whl"))


def unpack_wheel(wheel: Path, folder: Path) -> Path:
    """Unpack a wheel of pure Python, and return its folder, for PYTHONPATH."""
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(folder)], check=True)
    return folder
