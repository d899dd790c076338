"""A fleet of two sites as real processes over real brokers, with an uplink that is cut."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from coordinator.store.run_store import Store
from tests.support.processes import (
    AGENT,
    COORDINATOR,
    GATEWAY,
    Running,
    Start,
    result,
    wait_for_words,
)
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.processes, pytest.mark.broker, pytest.mark.slow]
ROUNDS = 3
SETTINGS = ["train.epochs=20", "evaluate.devices=false", "fleet.wait=90", "method.lr=0.002"]


def start_coordinator(start: Start, broker: str, name: str, agents: int) -> Running:
    return start(
        *(*COORDINATOR, "start", "--broker", broker, "--name", name, "--rounds", str(ROUNDS)),
        *("--method", "fedavg", "--model", "mlp-small", "--min-agents", str(agents)),
        *(word for one in SETTINGS for word in ("--set", one)),
        *("--format", "json"),
    )


def start_device(start: Start, broker: str, run: str, index: int) -> Running:
    shard = ["--data", "digits", "--shard", f"{index}/4", "--seed", "0"]
    where = ["--broker", broker, "--run", run, "--name", f"a{index}"]
    return start(*AGENT, "join", *where, *shard, "--format", "json")


def read_state(folder: Path, run: str) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = load_file(
        folder / "runs" / run / f"round-{ROUNDS:06d}.safetensors"
    )
    return found


def read_port(process: Running, log: Path) -> str:
    """Return the address of the broker that a gateway started."""
    assert wait_for_words(process, log, "agents join with")
    found = re.search(r"--broker (\S+)", log.read_text())
    assert found
    return found[1]


def test_two_sites_equal_the_fleet_without_gateways(
    tmp_path: Path, start: Start, broker: str
) -> None:
    """The uplink of one site and that of the coordinator are cut while the site trains in the
    second round: the clock of the run stands still without a broker, so the test depends on no
    time. Both fleets run at one broker. The uplinks of sites and of single devices pass a proxy
    that counts their bytes.
    """
    port = int(broker.rpartition(":")[2])
    uplinks, own = [Proxy(port) for _ in range(2)], Proxy(port)
    direct = Proxy(port)
    run_direct(start, port, direct)
    coordinator = start_coordinator(start, f"127.0.0.1:{own.port}", "sites", 2)
    gateways = []
    for index, uplink in enumerate(uplinks):
        where = ["--broker", f"127.0.0.1:{uplink.port}", "--run", "sites", "--port", "0"]
        spool = ["--spool", str(tmp_path / f"site{index}"), "--min-devices", "2"]
        name = ["--name", f"site-{index}", "--format", "json"]
        gateways.append(start(*GATEWAY, *where, *spool, *name))
    # five processes ran before the coordinator
    logs = [tmp_path / f"{6 + index}.err" for index in range(2)]
    sites = [read_port(*pair) for pair in zip(gateways, logs, strict=True)]
    for index in range(4):
        start_device(start, sites[index // 2], "sites", index)
    assert wait_for_words(gateways[1], logs[1], "round 2: 2 devices to train")
    own.cut()
    uplinks[1].cut()
    assert wait_for_words(gateways[1], logs[1], "lost the connection")
    assert wait_for_words(gateways[1], logs[1], "round 2: combined the train updates of 2 of 2")
    uplinks[1].mend()
    assert wait_for_words(gateways[1], logs[1], "reconnected to the broker")
    own.mend()
    assert result(coordinator, 240)["rounds"] == ROUNDS
    ends = [result(gateway) for gateway in gateways]
    assert [(end["updates"], end["devices"]) for end in ends] == [(ROUNDS, 2)] * 2
    with closing(Store.open(tmp_path / "runs", "sites", read_only=True)) as store:
        for number in range(1, ROUNDS + 1):
            entries = {one.agent: one.outcome for one in store.read_entries(number)}
            assert entries == {"site-0": "folded", "site-1": "folded"}
    wanted, found = (read_state(tmp_path, name) for name in ("direct", "sites"))
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5, err_msg=name)
    sent, received = (
        sum(getattr(uplink, name) for uplink in uplinks) for name in ("passed", "returned")
    )
    print(f"bytes to the broker: {sent} with gateways, {direct.passed} without")
    print(f"bytes from the broker: {received} with gateways, {direct.returned} without")
    assert sent < 0.7 * direct.passed
    assert received < 0.7 * direct.returned
    for proxy in (*uplinks, own, direct):
        proxy.close()


def run_direct(start: Start, port: int, uplink: Proxy) -> None:
    """Run the fleet without gateways."""
    coordinator = start_coordinator(start, f"127.0.0.1:{port}", "direct", 4)
    agents = [start_device(start, f"127.0.0.1:{uplink.port}", "direct", i) for i in range(4)]
    result(coordinator, 240)
    for agent in agents:
        assert result(agent)["updates"] == ROUNDS
