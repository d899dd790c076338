"""What the doctor finds out about a way to a broker, and a coordinator at its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.fleet.fleet import Fleet
from edge_agent.doctor import broker_checks, connection_checks
from edge_agent.doctor.check import Check
from federated.wire import messages
from federated.wire.address import Address
from models.families.catalogue import network, probes
from tests.support.links import connected

__all__ = ["CARD", "coordinating", "states", "tried"]

NETWORK = network("preresnet", (1, 8, 8), 10)
CARD = messages.Run("r", "fedavg", "preresnet", NETWORK, probes(NETWORK, [2]), 32, "s")


def tried(broker: str, name: str = "pi", run: str | None = None) -> dict[str, Check]:
    """What was found, by the names of the checks; nothing is waited for longer than 2 s."""
    with pytest.MonkeyPatch.context() as hasty:
        hasty.setattr(broker_checks, "PATIENCE", 2.0)
        return {
            one.name: one
            for one in connection_checks.wire(broker, run, name)
            if isinstance(one, Check)
        }


def states(found: dict[str, Check]) -> dict[str, str]:
    return {name: check.state for name, check in found.items()}


@contextlib.contextmanager
def coordinating(url: str | Address, folder: Path) -> Iterator[None]:
    """A coordinator's half of the protocol, for a run that nobody has joined."""
    link = connected(url, "coordinator")
    fleet, over = Fleet(link, CARD, folder / "spool"), threading.Event()
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
        assert not fleet.agents, "who only tries the way is no agent"
        link.close()
