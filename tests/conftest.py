"""Fixtures and settings for every test."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from federated.runtime.torch_import import defer_compiler

defer_compiler()  # few tests need it, and its import takes seconds
# their fixtures are for all
pytest_plugins = [
    "tests.support.enrolment_server",
    "tests.support.installed_boards",
    "tests.support.plugins",
    "tests.support.processes",
    "tests.support.phone_pages",  # imports the one above
]
CACHES = Path(tempfile.mkdtemp(prefix="espalier-caches-"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import all tests without the garbage collector, which would search their modules again and
    again, and leave them out of its later searches.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Repeat what may fail because the machine was busy; the summary counts such repeats.

    A measurement of the machine is made up to three times, and a test with brokers or processes
    gets a second try. The Makefile finds the files with slow tests, and with tests that measure
    time, by the text of their marks. No test has both: slow tests run side by side.
    """
    for item in items:
        for mark in ("slow", "timed"):
            if item.get_closest_marker(mark) and f"mark.{mark}" not in read_source(item.path):
                raise pytest.UsageError(f"{item.nodeid}: write its mark as pytest.mark.{mark}")
        if item.get_closest_marker("slow") and item.get_closest_marker("timed"):
            raise pytest.UsageError(f"{item.nodeid}: a slow test cannot run alone; make it short")
        if item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.flaky(reruns=2))
        elif item.get_closest_marker("broker") or item.get_closest_marker("processes"):
            item.add_marker(pytest.mark.flaky(reruns=1))


@cache
def read_source(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hide earlier measurements and the user's files from each test."""
    own = CACHES / hashlib.sha256(item.nodeid.encode()).hexdigest()[:16]
    os.environ["ESPALIER_CACHE"], os.environ["ESPALIER_STATE"] = str(own), str(own / "state")


def pytest_unconfigure() -> None:
    shutil.rmtree(CACHES, ignore_errors=True)
