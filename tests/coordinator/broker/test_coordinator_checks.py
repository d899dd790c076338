"""The checks of `coordinator doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordinator.broker import coordinator_checks
from coordinator.broker import local_broker as brokers
from coordinator.cli.main import main


@pytest.mark.broker
def test_the_doctor_prints_each_check_and_exits_accordingly(tmp_path: Path) -> None:
    with brokers.start(port=0, kind="embedded", directory=tmp_path) as broker:
        healthy = CliRunner().invoke(main, ["doctor", "--broker", broker.address])
    assert healthy.exit_code == 0, healthy.output
    assert [line.split()[1] for line in healthy.output.splitlines()][:6] == [
        *("dns", "tcp", "tls", "credentials", "order", "retained")
    ]
    gone = CliRunner().invoke(main, ["doctor", "--broker", broker.address, "--format", "json"])
    told = json.loads(gone.output)
    assert gone.exit_code == told["exit"] == 5
    assert [row["check"] for row in told["checks"]][:3] == ["dns", "tcp", "disk"]


def test_without_a_broker_the_machine_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_checks, "find_mosquitto", lambda: None)
    ended = CliRunner().invoke(main, ["doctor", "--runs", str(tmp_path / "runs")])
    assert ended.exit_code == 0, ended.output
    states = {words[1]: words[0] for words in map(str.split, ended.output.splitlines())}
    assert list(states) == ["disk", "memory", "torch", "onnx", "mosquitto", "clock"]
    assert states["mosquitto"] == "warn"
    assert "embedded broker" in ended.output
    assert not list(tmp_path.iterdir())
