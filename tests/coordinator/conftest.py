"""A fleet over a broker in memory, with a clock that a test sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.fleet.message_loop import MessageLoop
from coordinator.observe.events import Event
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.manual_clock import Clock
from tests.support.scripted_coordinator import CARD


@pytest.fixture
def memory() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def published() -> list[Event]:
    """Return the events of `fleet`."""
    return []


@pytest.fixture
def fleet(
    memory: MemoryBroker, tmp_path: Path, clock: Clock, published: list[Event]
) -> MessageLoop:
    made = MessageLoop(
        MemoryLink(memory, "coordinator"), CARD, tmp_path, clock=clock, publish=published.append
    )
    made.endpoint.announce()
    return made
