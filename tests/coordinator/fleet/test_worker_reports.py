"""The message loop handles what its workers report."""

from __future__ import annotations

import time
from collections.abc import Iterator

from coordinator.fleet.message_loop import MessageLoop
from coordinator.observe.events import Event, Rejected
from coordinator.update_workers.worker_messages import Invalid


class Pool:
    """Reports one invalid message."""

    busy = False

    def take_reports(self) -> Iterator[tuple[None, Invalid]]:
        yield None, Invalid("fl", "too large", malformed=False)

    def take_flooders(self) -> frozenset[str]:
        return frozenset()


def test_a_turn_that_handles_reports_does_not_wait_for_a_message(
    fleet: MessageLoop, published: list[Event]
) -> None:
    """Otherwise a phase whose last update a worker reports ends later than it could."""
    while fleet.link.receive(0.0) is not None:
        pass
    fleet.inbox.workers = Pool()  # type: ignore[assignment]
    start = time.monotonic()
    fleet.turn(30.0)
    assert time.monotonic() - start < 15
    assert any(isinstance(event, Rejected) for event in published)
