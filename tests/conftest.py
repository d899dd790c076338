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
    "tests.support.plugins",
    "tests.support.processes",
    "tests.support.installed_boards",  # imports the one above, as the next one does
    "tests.support.phone_pages",
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


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Repeat what may fail because the machine was busy; the summary counts such repeats. Of the
    tests that `-m` selects, begin with the longest.

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
    result = yield
    if workers := getattr(config, "workerinput", {}).get("workercount", 0):
        items[:] = begin_with_longest(items, workers)
    return result


def begin_with_longest(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Order tests so that each worker begins with some of those that have a longer time limit than
    usual: at the end, the other workers would wait for them. Each worker gets one of as many equal
    parts of the list.
    """

    def limit(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return float(mark.args[0]) if mark else 0.0

    longest = sorted((item for item in items if limit(item)), key=limit, reverse=True)
    rest = [item for item in items if not limit(item)]
    found = list[pytest.Item]()
    for index in range(workers):
        own = longest[index::workers]
        size = (len(items) - len(found)) // (workers - index)
        more = size - len(own)
        found += own + rest[:more]
        rest = rest[more:]
    return found


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
