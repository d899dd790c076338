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
