"""What holds for every test."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest

pytest_plugins = ["tests.support.office", "tests.support.processes"]  # their fixtures are for all
CACHES = Path(tempfile.mkdtemp(prefix="espalier-caches-"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """No test finds what another one measured, nor what the person who runs it did."""
    own = CACHES / hashlib.sha256(item.nodeid.encode()).hexdigest()[:16]
    os.environ["ESPALIER_CACHE"], os.environ["ESPALIER_STATE"] = str(own), str(own / "state")


def pytest_unconfigure() -> None:
    shutil.rmtree(CACHES, ignore_errors=True)
