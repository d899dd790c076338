"""A fleet whose agents and coordinator reach the broker only through a proxy, over WebSockets."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.support.brokers import needs_mosquitto, open_websockets
from tests.support.processes import AGENT, COORDINATOR, Start, result
from tests.support.proxy import ConnectProxy

pytestmark = [pytest.mark.processes, pytest.mark.broker, pytest.mark.slow]
QUICK = ["train.epochs=1", "evaluate.devices=false", "fleet.wait=90", "wire.chunk=3000"]


@needs_mosquitto
def test_a_fleet_trains_over_websockets_through_a_proxy(tmp_path: Path, start: Start) -> None:
    with (
        open_websockets(tmp_path) as url,
        contextlib.closing(ConnectProxy(int(url.rpartition(":")[2]))) as proxy,
    ):
        where = ["--broker", "ws://broker.invalid/fleet", "--format", "json"]
        through = {"http_proxy": f"http://127.0.0.1:{proxy.port}", "no_proxy": ""}
        run = ["--name", "r", "--model", "mlp-small", "--rounds", "2", "--min-agents", "2"]
        more = [word for one in QUICK for word in ("--set", one)]
        coordinator = start(*COORDINATOR, "start", *run, *more, *where, variables=through)
        agents = [
            start(*AGENT, "join", *where, "--name", f"a{i}", variables=through) for i in range(2)
        ]
        assert result(coordinator)["rounds"] == 2
        for process in agents:
            left = result(process)
            assert (left["reason"], left["updates"]) == ("the run is over", 2)
        passed = proxy.passed
    assert set(proxy.asked) == {"broker.invalid:80"}
    assert len(proxy.asked) >= 3, "the coordinator and two agents"
    assert passed > 10_000
