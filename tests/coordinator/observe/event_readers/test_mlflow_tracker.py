"""Tracking of a run with MLflow."""

from __future__ import annotations

import logging
import queue
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.observe.event_readers.mlflow_tracker import (
    FILE,
    flatten_settings,
    send,
    track_with_mlflow,
)
from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import RoundEnded, RunEnded
from coordinator.observe.round_records import RoundRecord, Score
from coordinator.settings.config import Config, to_json
from coordinator.settings.service_tables import Broker
from federated.errors import ConfigError, MissingExtra


def context(folder: Path) -> ReaderContext:
    return ReaderContext(folder, Config(name="spring"), lambda: 0.0)


def finished(number: int) -> RoundEnded:
    score = Score("w1", "central", 0.5, 1.5, 8, metrics={"accuracy": number / 4})
    return RoundEnded(RoundRecord(number, 2.0, {}, {}, scores=(score,)))


def test_a_resumed_run_continues_the_same_mlflow_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "server").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a server that needs no process
    for number, end in ((1, RunEnded("stopped", "asked")), (2, RunEnded("over", "done"))):
        read = track_with_mlflow(context(tmp_path))
        read(finished(number))
        read(end)
        client, run = mlflow.MlflowClient(), (tmp_path / FILE).read_text().strip()
        known = client.get_run(run)
        assert known.info.status == ("KILLED" if number == 1 else "FINISHED")
    assert known.info.run_name == "spring"
    assert known.data.params["fleet.min_agents"] == "2"
    history = client.get_metric_history(run, "central/w1/accuracy")
    assert [(one.step, one.value) for one in history] == [(1, 0.25), (2, 0.5)]


def test_parameters_omit_the_address_of_the_broker() -> None:
    config = Config(broker=Broker(url="mqtt://me:secret@host"))
    known = dict(flatten_settings(to_json(config)))
    assert known["name"] == ""
    assert known["simulate.agents"] == "10"
    assert not any("secret" in value for value in known.values())


def test_a_server_error_is_logged_and_ends_the_tracking(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://nowhere")

    class Client:
        def update_run(self, run: str, **given: Any) -> None:
            raise OSError(f"{run}: no server")

    (tmp_path / FILE).write_text("known-run\n")
    with caplog.at_level(logging.ERROR):
        send(Client(), Config(), tmp_path / FILE, queue.SimpleQueue())  # type: ignore[arg-type]
    (record,) = caplog.records
    assert "http://nowhere failed" in record.getMessage()
    assert "known-run: no server" in record.getMessage()


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://nowhere")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[mlflow\]'"):
        track_with_mlflow(context(tmp_path))


def test_a_missing_server_address_is_an_error_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match="set MLFLOW_TRACKING_URI"):
        track_with_mlflow(context(tmp_path))
