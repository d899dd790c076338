"""Send the coordinator's messages: publish the run's description (its card) and weights at the
broker, and send messages to single agents.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from coordinator.fleet.published_weights import WeightSlots
from federated.errors import LinkError
from federated.wire import envelope, messages, topics
from federated.wire.link import Link

__all__ = ["Endpoint"]

log = logging.getLogger(__name__)

FAREWELL = 300.0  # seconds that the end of a run waits for the broker, across reconnections
CLEANING = 60.0  # seconds that it then waits until the broker has removed the run's messages
STOPPING = 5.0  # seconds that a stopping coordinator waits for the broker


class Endpoint:
    """Sends the messages of one run.

    card: what agents need to find the run and to measure themselves.
    announced: the card as it was published last.
    epoch: in every message, so that agents and other coordinators of the run know which of two is
        the later one.
    """

    def __init__(
        self,
        link: Link,
        card: messages.Run,
        slots: WeightSlots,
        epoch: int = 0,
        *,
        chunks: bool = True,
    ) -> None:
        """slots: the weights that the broker retains. chunks: whether this link receives those of
        updates.
        """
        self.link, self.card, self.slots, self.epoch = link, card, slots, epoch
        self.announced = b""
        # an update that others replace in a shared store comes in chunks in the end
        chunks = chunks and (slots.urls is None or slots.urls.above > 0 or slots.urls.shared)
        self._patterns = topics.coordinator_patterns(card.run, chunks=chunks)
        self._dismissed = False

    def announce(self) -> None:
        """Subscribe to the agents' messages and publish the run's card."""
        self.listen()
        self.publish(self.card)

    def listen(self) -> None:
        """Subscribe to the agents' messages. The broker then sends their retained profiles and
        status again.
        """
        for pattern in self._patterns:
            self.link.subscribe(pattern)

    def publish(self, card: messages.Run) -> None:
        """Publish the run's card, which may hold more than the last one."""
        self.card, self.announced = card, self._encode(card)
        self.link.publish(topics.run(card.run), self.announced, retain=True)

    def republish(self) -> None:
        """Publish everything again, for a broker that restarted and may have lost it."""
        self.publish(self.card)
        self.slots.republish()

    def refuse_run(self, agent: str) -> None:
        """Tell an agent that it has no right to the run."""
        run = self.card.run
        reason = (
            f"this device has no right to the run '{run}'; its operator gives it with coordinator "
            f"grant {agent} --run {run}"
        )
        self.tell(agent, messages.Refusal(reason, messages.JOINING))

    def tell(self, agent: str, message: messages.Message) -> None:
        """Send a message to one agent."""
        self.link.publish(topics.command(self.card.run, agent), self._encode(message))

    def _encode(self, message: messages.Message) -> bytes:
        return envelope.encode(message, self.epoch)

    def dismiss(
        self,
        reason: str,
        agents: Collection[str],
        online: Collection[str] = (),
        patience: float = 0.0,
    ) -> None:
        """End the run for all agents. Only the goodbye remains retained. Its delivery is awaited,
        because agents without it would wait forever.

        agents: all that the run knows.
        online: those that may sign off. A broker that ends with the coordinator may end before it
            has delivered what it acknowledged, so their departure is awaited.
        patience: seconds to wait for it.
        """
        self._dismissed = True
        run = self.card.run
        try:
            goodbye = self._encode(messages.Goodbye(reason))
            self.link.publish(topics.everyone(run), goodbye)
            # replaces the card: agents that are offline get it when they return
            self.link.publish(topics.run(run), goodbye, retain=True)
            if not self.link.flush(STOPPING):
                log.warning(
                    "the broker has not acknowledged the end of the run: waiting %.0f s", FAREWELL
                )
                if not self.link.flush(FAREWELL):
                    raise LinkError(f"the broker did not acknowledge it within {FAREWELL:.0f} s")
            self._wait_for_departures(set(online), time.monotonic() + patience)
            self.slots.clear()
            # Otherwise the broker would deliver each of the removals below, and nobody reads them.
            self.link.unsubscribe(*self._patterns)
            for name in agents:
                self.link.publish(topics.profile(run, name), b"", retain=True)
                self.link.publish(topics.status(run, name), b"", retain=True)
            self.link.flush(CLEANING)
        except LinkError as error:  # the run has ended anyway
            self.slots.remove_files()
            log.warning(
                "could not notify the agents that the run has ended (%s): stop agents that are "
                "still waiting",
                error,
            )

    def _wait_for_departures(self, online: set[str], until: float) -> None:
        """Wait until each of these agents has withdrawn its retained status."""
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
        """Leave without ending the run: no agent can join, and the others wait until a coordinator
        resumes it. Does nothing after `dismiss`.
        """
        if self._dismissed:
            return
        self.link.publish(topics.run(self.card.run), b"", retain=True)
        # waiting for a full queue would block the person who stops the coordinator
        if self.link.flush(STOPPING):
            self.slots.clear()
