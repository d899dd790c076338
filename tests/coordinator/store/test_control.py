"""Wishes reach a coordinator through the run's database."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.store import run_lock
from coordinator.store.control import Helm, Stopped, Wishes, wish, wishes
from federated.errors import StoreError
from tests.support.clock import Clock


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sqlite3.connect(tmp_path / "run.sqlite").execute("PRAGMA journal_mode=WAL")
    return tmp_path


@pytest.fixture
def helm(folder: Path, clock: Clock) -> Iterator[Helm]:
    """Of a coordinator that holds the run."""
    lock = run_lock.hold(folder)
    helm = Helm(folder, clock)
    yield helm
    helm.close()
    os.close(lock)


def test_a_pause_is_heard_within_a_second_and_lasts_until_it_is_taken_back(
    folder: Path, helm: Helm, clock: Clock
) -> None:
    wish(folder, "pause")
    helm.look()
    assert not helm.paused, "it looks once a second"
    assert wishes(folder) == Wishes(paused=True, heard=False)
    clock.now = 1.0
    helm.look()
    assert helm.paused
    assert wishes(folder) == Wishes(paused=True)
    wish(folder, "go on")
    clock.now = 2.0
    helm.look()
    assert not helm.paused
    assert wishes(folder) == Wishes()


def test_a_stop_waits_for_the_end_of_the_round(folder: Path, helm: Helm, clock: Clock) -> None:
    helm.within()
    wish(folder, "stop")
    clock.now = 1.0
    helm.look()
    assert helm.stopping
    with pytest.raises(Stopped):
        helm.between()
    assert wishes(folder) == Wishes(), "it is heeded once"


def test_a_stop_now_does_not_wait(folder: Path, helm: Helm, clock: Clock) -> None:
    helm.within()
    wish(folder, "stop")
    wish(folder, "stop now")
    clock.now = 1.0
    with pytest.raises(Stopped):
        helm.look()


def test_a_stop_is_heeded_at_once_while_no_round_is_under_way(
    folder: Path, helm: Helm, clock: Clock
) -> None:
    wish(folder, "stop")
    clock.now = 1.0
    with pytest.raises(Stopped):
        helm.look()


def test_the_next_coordinator_does_not_stop_for_the_wish_of_before_but_stays_paused(
    folder: Path, helm: Helm
) -> None:
    wish(folder, "stop")
    wish(folder, "pause")
    later = Helm(folder)
    assert (later.paused, later.stopping) == (True, False)
    later.close()


def test_a_coordinator_that_is_writing_does_not_lose_a_wish(
    folder: Path, helm: Helm, clock: Clock
) -> None:
    wish(folder, "pause")
    writing = sqlite3.connect(folder / "run.sqlite", isolation_level=None)
    writing.execute("BEGIN IMMEDIATE")
    clock.now = 1.0
    helm.look()
    assert helm.paused, "reading goes on beside a writer"
    assert not wishes(folder).heard
    writing.execute("COMMIT")
    clock.now = 2.0
    helm.look()
    assert wishes(folder).heard


def test_without_a_coordinator_nobody_is_asked(folder: Path) -> None:
    with pytest.raises(
        StoreError, match="has no coordinator at the moment: there is nothing to stop"
    ):
        wish(folder, "stop now")
    assert wishes(folder) == Wishes()


def test_a_run_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no run 'nothing' in .*; there are: none$"):
        wish(tmp_path / "nothing", "pause")


def test_looking_whether_a_run_is_held_does_not_take_it(folder: Path) -> None:
    assert not run_lock.held(folder)
    lock = run_lock.hold(folder)
    assert run_lock.held(folder)
    os.close(lock)
    assert not run_lock.held(folder)
    os.close(run_lock.hold(folder))
