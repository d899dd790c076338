"""Requests reach a coordinator through the run's database."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.store import run_lock, run_store
from coordinator.store.control_requests import (
    Control,
    Requests,
    Stopped,
    begin_requests,
    pin_agent,
    read_requests,
    send_request,
)
from coordinator.store.database import Facts
from coordinator.store.run_store import Store
from federated.errors import StoreError, Unknown
from models.submodel import Network, Submodel
from tests.support.manual_clock import Clock
from tests.support.scripted_agent import PROFILE

NETWORK = Network("preresnet", "small", (1, 8, 8), 10)
SMALL, LARGE = (Submodel(NETWORK, width, ((1, 1),), ("scaler",)) for width in (0.5, 1.0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        begin_requests(database, datetime.now(UTC))
    return tmp_path


@pytest.fixture
def control(folder: Path, clock: Clock) -> Iterator[Control]:
    """Yield the control of a coordinator that holds the run."""
    lock = run_lock.acquire(folder)
    control = Control(folder, clock)
    yield control
    control.close()
    run_lock.release(lock)


def test_a_pause_starts_within_a_second_and_lasts_until_it_is_resumed(
    folder: Path, control: Control, clock: Clock
) -> None:
    send_request(folder, "pause")
    control.look()
    assert not control.paused, "it looks once a second"
    assert read_requests(folder) == Requests(paused=True, seen=False)
    clock.now = 1.0
    control.look()
    assert control.paused
    assert read_requests(folder) == Requests(paused=True)
    send_request(folder, "resume")
    clock.now = 2.0
    control.look()
    assert not control.paused
    assert read_requests(folder) == Requests()


def test_a_stop_waits_for_the_end_of_the_round(
    folder: Path, control: Control, clock: Clock
) -> None:
    control.begin_round()
    send_request(folder, "stop")
    clock.now = 1.0
    control.look()
    assert control.stopping
    with pytest.raises(Stopped):
        control.end_round()
    assert read_requests(folder) == Requests(), "it is obeyed once"


def test_a_stop_now_does_not_wait(folder: Path, control: Control, clock: Clock) -> None:
    control.begin_round()
    send_request(folder, "stop")
    send_request(folder, "stop now")
    clock.now = 1.0
    with pytest.raises(Stopped):
        control.look()


def test_a_stop_is_obeyed_at_once_between_rounds(
    folder: Path, control: Control, clock: Clock
) -> None:
    send_request(folder, "stop")
    clock.now = 1.0
    with pytest.raises(Stopped):
        control.look()


def test_the_next_coordinator_ignores_an_old_stop_but_stays_paused(
    folder: Path, control: Control
) -> None:
    send_request(folder, "stop")
    send_request(folder, "pause")
    with closing(sqlite3.connect(folder / "run.sqlite")) as database:
        begin_requests(database, datetime.now(UTC))
    later = Control(folder)
    assert (later.paused, later.stopping) == (True, False)
    later.close()


@pytest.mark.parametrize("resumed", [False, True])
def test_a_stop_that_is_sent_while_the_coordinator_starts_is_obeyed(
    tmp_path: Path, resumed: bool
) -> None:
    store = Store.create(tmp_path, "r")
    if resumed:
        store.close()
        store = Store.open(tmp_path, "r")
    with closing(store):
        send_request(store.folder, "stop")
        with closing(Control(store.folder)) as control, pytest.raises(Stopped):
            control.look()


def test_a_stop_that_is_sent_while_the_files_are_checked_is_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.create(tmp_path, "r").close()

    def check(folder: Path) -> sqlite3.Connection:
        send_request(folder, "stop")
        return open_intact(folder)

    open_intact = run_store.open_intact
    monkeypatch.setattr(run_store, "open_intact", check)
    with (
        closing(Store.open(tmp_path, "r")) as store,
        closing(Control(store.folder)) as control,
        pytest.raises(Stopped),
    ):
        control.look()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Yield a run in progress whose menu and one agent, `pi`, are known."""
    with closing(Store.create(tmp_path, "r")) as store:
        store.write_facts(Facts({}, NETWORK, (SMALL, LARGE)))
        store.agents.write_decisions(1, {}, {"pi": PROFILE})
        yield store


def test_a_pin_lasts_over_restarts_until_it_is_removed(store: Store, clock: Clock) -> None:
    with closing(Control(store.folder, clock)) as control:
        assert pin_agent(store.folder, "pi", SMALL.name) == ""
        assert not control.pins, "it looks once a second"
        clock.now = 1.0
        control.look()
        assert control.pins == {"pi": SMALL.name}
        assert pin_agent(store.folder, "pi", "w1-d2") == SMALL.name, "short for w1-d2-scaler"
    with closing(Control(store.folder)) as later:
        assert later.pins == read_requests(store.folder).pins == {"pi": "w1-d2"}
    assert pin_agent(store.folder, "pi", "") == "w1-d2"
    assert read_requests(store.folder).pins == {}


def test_only_known_agents_and_submodels_are_pinned_while_the_run_is_in_progress(
    store: Store,
) -> None:
    with pytest.raises(Unknown, match=r"unknown submodel 'w7'.*w0.5-d2-scaler, w1-d2-scaler$"):
        pin_agent(store.folder, "pi", "w7")
    with pytest.raises(Unknown, match=r"unknown agent 'pie'; did you mean pi\?"):
        pin_agent(store.folder, "pie", SMALL.name)
    assert read_requests(store.folder).pins == {}
    store.close()
    with pytest.raises(StoreError, match="not running, so there is nothing to pin"):
        pin_agent(store.folder, "pi", SMALL.name)


def test_a_request_during_a_write_is_not_lost(folder: Path, control: Control, clock: Clock) -> None:
    send_request(folder, "pause")
    writing = sqlite3.connect(folder / "run.sqlite", isolation_level=None)
    writing.execute("BEGIN IMMEDIATE")
    clock.now = 1.0
    control.look()
    assert control.paused, "a writer does not block readers"
    assert not read_requests(folder).seen
    writing.execute("COMMIT")
    clock.now = 2.0
    control.look()
    assert read_requests(folder).seen


def test_a_request_without_a_coordinator_is_an_error(folder: Path) -> None:
    with pytest.raises(StoreError, match="not running"):
        send_request(folder, "stop now")
    assert read_requests(folder) == Requests()


def test_a_missing_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no run 'nothing' in .*choose the folder"):
        send_request(tmp_path / "nothing", "pause")


def test_is_held_does_not_keep_the_lock(folder: Path) -> None:
    assert not run_lock.is_held(folder)
    lock = run_lock.acquire(folder)
    assert run_lock.is_held(folder)
    run_lock.release(lock)
    assert not run_lock.is_held(folder)
    run_lock.release(run_lock.acquire(folder))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_does_not_hold_the_lock(folder: Path) -> None:
    """A worker may live a moment longer than a killed simulation, which can be resumed at once."""
    lock = run_lock.acquire(folder)
    ended, end = os.pipe()
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        os.write(tell, b"x")
        os.read(ended, 1)
        os._exit(0)
    os.read(ready, 1)
    assert run_lock.is_held(folder)
    run_lock.release(lock)
    assert not run_lock.is_held(folder)
    os.close(end)
    assert os.waitpid(child, 0)[1] == 0
    for handle in (ended, ready, tell):
        os.close(handle)
