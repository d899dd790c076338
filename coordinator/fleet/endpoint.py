"""The coordinator's end of the link: the run's card, its weights, and what single agents are
told.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from pathlib import Path

from coordinator.fleet.weight_slots import Shelf
from federated.errors import LinkError
from federated.wire import envelope, messages, topics
from federated.wire.link import Link

__all__ = ["Endpoint"]

log = logging.getLogger(__name__)

FAREWELL = 60.0  # seconds that the end of a run waits for the broker, across reconnections
STOPPING = 5.0  # seconds that a coordinator waits for the broker when it is stopped


class Endpoint:
    """Speaks for one run. card: what agents find it and measure themselves by. spool: where copies
    of the weights lie. chunk: bytes; 0: any.
    """

    def __init__(self, link: Link, card: messages.Run, spool: Path, chunk: int = 0) -> None:
        self.link, self.card = link, card
        self.shelf = Shelf(link, card.run, spool, chunk)
        self._dismissed = False

    def announce(self) -> None:
        """Listens to agents and publishes the run's card."""
        self.listen()
        self.publish(self.card)

    def listen(self) -> None:
        """Subscribes to what agents say. What they retained, who they are and whether they are
        online, comes again.
        """
        for pattern in topics.coordinator_patterns(self.card.run):
            self.link.subscribe(pattern)

    def publish(self, card: messages.Run) -> None:
        """Publishes the run's card, which may say more than the last one."""
        self.card = card
        self.link.publish(topics.run(card.run), envelope.encode(card), retain=True)

    def restock(self) -> None:
        """Publishes everything again, for a broker that restarted and may have forgotten it."""
        self.publish(self.card)
        self.shelf.restock()

    def tell(self, agent: str, message: messages.Message) -> None:
        self.link.publish(topics.command(self.card.run, agent), envelope.encode(message))

    def dismiss(
        self,
        reason: str,
        agents: Collection[str],
        online: Collection[str] = (),
        patience: float = 0.0,
    ) -> None:
        """End the run for all agents. Only the goodbye stays retained; its delivery is awaited,
        since agents without it would wait for ever.

        agents: all that the run knows. online, patience: those that have so many seconds to sign
        off, for a broker that may end with the coordinator, before it delivered what it
        acknowledged.
        """
        self._dismissed = True
        run = self.card.run
        try:
            goodbye = envelope.encode(messages.Goodbye(reason))
            self.link.publish(topics.everyone(run), goodbye)
            # in the card's place: agents that are away hear it when they return
            self.link.publish(topics.run(run), goodbye, retain=True)
            if not self.link.flush(FAREWELL):
                raise LinkError(f"the broker did not acknowledge it within {FAREWELL:.0f} s")
            self._await_departures(set(online), time.monotonic() + patience)
            self.shelf.clear()
            for name in agents:
                self.link.publish(topics.profile(run, name), b"", retain=True)
                self.link.publish(topics.status(run, name), b"", retain=True)
            self.link.flush(FAREWELL)
        except LinkError as error:  # the run is over all the same
            log.warning(
                "the end of the run could not be sent (%s): agents may keep waiting; "
                "stop them by hand",
                error,
            )

    def _await_departures(self, online: set[str], until: float) -> None:
        """Wait until every one of these took its retained status away."""
        while online and time.monotonic() < until:
            delivery = self.link.receive(0.05)
            where = (
                topics.parse(delivery.topic)
                if delivery is not None and not delivery.payload
                else None
            )
            if where is not None and where.kind == "status":
                online.discard(where.agent or "")

    def withdraw(self) -> None:
        """Leave without ending the run: nobody can join meanwhile, and the agents wait for a
        coordinator that resumes. Nothing after `dismiss`.
        """
        if self._dismissed:
            return
        self.link.publish(topics.run(self.card.run), b"", retain=True)
        # a full queue would block the person who stops the coordinator
        if self.link.flush(STOPPING):
            self.shelf.clear()
