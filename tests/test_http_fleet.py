"""Fleets whose weights and updates travel over HTTP(S), as real processes."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.broker.local_addresses import find_free_port
from coordinator.broker.mosquitto_config import find_mosquitto
from tests.support.brokers import is_listening, needs_mosquitto
from tests.support.processes import AGENT, COORDINATOR, Start, result, wait_for_words
from tests.support.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.broker, pytest.mark.slow]
RUN = ["--name", "r", "--rounds", "2", "--min-agents", "2"]
QUICK = ["train.epochs=1", "evaluate.devices=false", "fleet.wait=90", "http.listen=127.0.0.1:0"]
SETTINGS = [word for one in QUICK for word in ("--set", one)]
SLASHES, PACKET = 7, 128 << 10  # limits of AWS IoT Core


@contextlib.contextmanager
def open_limited_broker(folder: Path) -> Iterator[str]:
    """Run a mosquitto with the limits of AWS IoT Core; yield its address."""
    program, port = find_mosquitto(), find_free_port("127.0.0.1", 0)
    assert program is not None
    patterns = ["/".join(["fl", "v1", *"+" * levels]) for levels in range(1, SLASHES)]
    (folder / "limited.acl").write_text("".join(f"topic readwrite {one}\n" for one in patterns))
    lines = [
        f"listener {port} 127.0.0.1",
        "user root",
        "allow_anonymous true",
        f"acl_file {folder / 'limited.acl'}",
        f"max_packet_size {PACKET}",
    ]
    (folder / "limited.conf").write_text("\n".join(lines) + "\n")
    server = subprocess.Popen(
        [program, "-c", str(folder / "limited.conf")], stderr=subprocess.DEVNULL
    )
    try:
        eventually(lambda: is_listening(f"127.0.0.1:{port}"), 30)
        yield f"mqtt://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@needs_mosquitto
def test_a_fleet_trains_at_a_broker_with_the_limits_of_a_cloud(
    tmp_path: Path, start: Start
) -> None:
    """Without HTTP no update would arrive there."""
    with open_limited_broker(tmp_path) as url:
        where = ["--broker", url, "--format", "json"]
        model = ["--model", "preresnet-small"]
        coordinator = start(*COORDINATOR, "start", *RUN, *model, *SETTINGS, *where)
        agents = [start(*AGENT, "join", *where, "--name", f"a{i}") for i in range(2)]
        assert result(coordinator, 240)["rounds"] == 2
        for process in agents:
            left = result(process, 60)
            assert (left["reason"], left["updates"]) == ("the run is over", 2)
    told = (tmp_path / "0.err").read_text()
    assert "agents transfer weights and updates over http://127.0.0.1:" in told
    assert "slashes" not in told


@needs_mosquitto
def test_a_fleet_with_certificates_transfers_over_https(tmp_path: Path, start: Start) -> None:
    ports = [str(find_free_port("127.0.0.1", 0)) for _ in range(2)]
    pki = {"ESPALIER_BROKER__PKI": str(tmp_path / "pki")}
    coordinator = start(
        *(*COORDINATOR, "start", *RUN, "--model", "mlp-small", *SETTINGS, "--tls"),
        *("--port", ports[0], "--set", f"broker.enrol={ports[1]}", "--format", "json"),
        variables=pki,
    )
    assert wait_for_words(coordinator, tmp_path / "0.err", "https://127.0.0.1:")
    agents = []
    for i in range(2):
        enrol = start(*COORDINATOR, "enroll", f"a{i}", "--host", "127.0.0.1", variables=pki)
        token, _ = enrol.communicate(timeout=90)
        (file := tmp_path / f"token{i}").write_text(token)
        state = {"ESPALIER_STATE": str(tmp_path / f"device{i}")}
        join = ["join", "--token-file", str(file), "--format", "json"]
        agents.append(start(*AGENT, *join, variables=state))
    assert result(coordinator, 240)["rounds"] == 2
    for process in agents:
        assert result(process, 60)["updates"] == 2
