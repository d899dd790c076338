"""The thread that keeps servers in other processes alive."""

from __future__ import annotations

import contextlib

import pytest

from federated.runtime import server_process
from federated.runtime.server_process import Poller
from tests.support.waiting import eventually


def test_the_same_failure_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_process, "POLL", 0.01)
    outcomes = iter(["full", "full", "away", "", "away", "away"])
    calls = list[str]()

    def poll() -> None:
        calls.append(why := next(outcomes, ""))
        if why:
            raise OSError(why)

    with contextlib.closing(Poller("metrics", poll)):
        eventually(lambda: len(calls) > 6)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["metrics: full", "metrics: away", "metrics: away"]


def test_no_error_ends_the_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody would notice that revoked devices stay connected."""
    monkeypatch.setattr(server_process, "POLL", 0.01)
    calls = list[int]()

    def poll() -> None:
        calls.append(1)
        raise ValueError("odd")

    with contextlib.closing(Poller("broker access", poll)):
        eventually(lambda: len(calls) > 2)
    assert [one.getMessage() for one in caplog.records] == ["broker access: odd"]
    assert caplog.records[0].exc_info, "where it happened, since nobody expected it"
