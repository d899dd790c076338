"""Run the doctor's checks of a connection, and a coordinator to check."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.fleet.message_loop import MessageLoop
from edge_agent.doctor import connection_checks
from federated.wire import messages
from federated.wire.checks import request_client
from federated.wire.checks.check_result import Check
from federated.wire.link import get_scheme
from federated.wire.links.catalogue import open_link
from federated.wire.mqtt_address import PORTS, MqttAddress
from models.menu import probes
from models.named_network import network
from tests.support.links import connect

__all__ = ["CARD", "check_broker", "coordinating", "states"]

NETWORK = network("preresnet", (1, 8, 8), 10)
CARD = messages.Run("r", "fedavg", "preresnet", NETWORK, probes(NETWORK, [2]), 32, "s")


def check_broker(
    broker: str, name: str = "pi", run: str | None = None, last: str = ""
) -> dict[str, Check]:
    """Return the checks by name, with timeouts of 2 s. last: the name of the last one to make."""
    found = dict[str, Check]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_client, "TIMEOUT", 2.0)
        for one in connection_checks.check_connection(broker, run, name):
            if isinstance(one, Check):
                found[one.name] = one
                if one.name == last:
                    break
    return found


def states(found: dict[str, Check]) -> dict[str, str]:
    return {name: check.state for name, check in found.items()}


@contextlib.contextmanager
def coordinating(url: str | MqttAddress, folder: Path) -> Iterator[None]:
    """Run the coordinator's half of the protocol for a run without agents."""
    plugged = isinstance(url, str) and get_scheme(url) not in PORTS
    link = open_link(url, "coordinator") if plugged else connect(url, "coordinator")
    fleet, over = MessageLoop(link, CARD, folder / "spool"), threading.Event()
    fleet.endpoint.announce()

    def turn() -> None:
        while not over.is_set():
            fleet.turn(0.05)

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        assert not fleet.agents, "a doctor does not count as an agent"
        link.close()
