"""Fleets whose weights and updates travel over HTTP(S), as real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.broker.local_addresses import find_free_port
from tests.support.brokers import needs_mosquitto
from tests.support.processes import AGENT, COORDINATOR, Start, result, wait_for_words
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.processes, pytest.mark.broker, pytest.mark.slow]
RUN = ["--name", "r", "--rounds", "2", "--min-agents", "2"]
QUICK = ["train.epochs=1", "evaluate.devices=false", "fleet.wait=90", "http.listen=127.0.0.1:0"]
SETTINGS = [word for one in QUICK for word in ("--set", one)]


@needs_mosquitto
def test_a_group_of_a_fleet_with_certificates_transfers_over_https(
    tmp_path: Path, start: Start
) -> None:
    """The third device states the group's name as a label, but is in no group."""
    ports = [str(find_free_port("127.0.0.1", 0)) for _ in range(2)]
    pki = {"ESPALIER_BROKER__PKI": str(tmp_path / "pki")}
    coordinator = start(
        *(*COORDINATOR, "start", *RUN, "--model", "mlp-small", *SETTINGS, "--tls"),
        *("--port", ports[0], "--set", f"broker.enrol={ports[1]}", "--format", "json"),
        *("--select", "group=eu"),
        variables=pki,
    )
    assert wait_for_words(coordinator, tmp_path / "0.err", "https://127.0.0.1:")
    agents = []
    for i, group in ((2, []), (0, ["--group", "eu"]), (1, ["--group", "eu"])):
        enrol = start(*COORDINATOR, "enroll", f"a{i}", *group, "--host", "127.0.0.1", variables=pki)
        token, _ = enrol.communicate(timeout=PATIENCE)
        (file := tmp_path / f"token{i}").write_text(token)
        state = {"ESPALIER_STATE": str(tmp_path / f"device{i}")}
        join = ["join", "--token-file", str(file), "--label", "eu", "--format", "json"]
        agents.append(start(*AGENT, *join, variables=state))
    assert result(coordinator, 240)["rounds"] == 2
    assert [result(process)["updates"] for process in agents] == [0, 2, 2]
