"""Fixtures of the tests of the web page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.run_pages import hold_run, serve


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """A server of the page for the runs in this folder."""
    with serve(tmp_path) as made:
        yield made


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run in round 2 whose lock is held, as if its coordinator worked."""
    with hold_run(tmp_path) as folder:
        yield folder
