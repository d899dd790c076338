"""A run continues while strangers flood the coordinator's enrolment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from coordinator.broker.local_addresses import find_free_port
from tests.support.brokers import needs_mosquitto
from tests.support.connection_flood import open_silent, start_flood
from tests.support.processes import AGENT, COORDINATOR, Start
from tests.support.waiting import PATIENCE, eventually

pytestmark = [
    pytest.mark.processes,
    pytest.mark.broker,
    pytest.mark.slow,
    needs_mosquitto,
]

LIMITED = ("/bin/sh", "-c", 'ulimit -n 256; exec "$@"', "sh")  # descriptors


def test_a_device_enrols_and_a_run_finishes_during_a_flood(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPALIER_STATE", str(tmp_path / "state"))
    port, enrol = find_free_port("127.0.0.1", 0), find_free_port("127.0.0.1", 0)
    pki = str(tmp_path / "pki")
    words = ["start", "--tls", "--pki", pki, "--port", str(port), "--name", "r", "--rounds", "2"]
    words += ["--runs", str(tmp_path / "runs"), "--min-agents", "1", "--model", "mlp-small"]
    words += ["--set", f"broker.enrol={enrol}"]
    coordinator = start(*LIMITED, *COORDINATOR, *words)
    log = tmp_path / "0.err"
    assert coordinator.stdout is not None
    assert "devices enrol at port" in coordinator.stdout.readline(), log.read_text()
    with start_flood(enrol, threads=1) as flood, open_silent(enrol, 100):
        eventually(lambda: flood.connections > 1000)
        invite = [*COORDINATOR, "enroll", "a", "--host", "localhost", "--pki", pki]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        token = subprocess.run(
            invite, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE
        ).stdout.strip()
        agent = start(*AGENT, "join", "--token", token, "--spool", str(tmp_path / "spool"))
        assert coordinator.wait(PATIENCE) == 0, log.read_text()
        assert agent.wait(PATIENCE) == 0, (tmp_path / "1.err").read_text()
        print(f"{flood.connections} connections during the run")
    lines = (tmp_path / "runs" / "r" / "log.jsonl").read_text().splitlines()
    assert not [line for line in lines if json.loads(line)["level"] == "ERROR"]
