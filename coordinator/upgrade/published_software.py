"""The retained messages about the agents' software at a broker: the card, and the reports."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from export.broker_publishing import SETTLE
from federated.errors import WireError
from federated.wire import envelope, topics
from federated.wire.link import Delivery, Link
from federated.wire.release_messages import Installed, SoftwareCard

__all__ = ["read_published"]


@dataclass
class PublishedSoftware:
    """Retained messages about a run's wanted software.

    card: the card, if any.
    reports: the last report of each agent.
    """

    card: SoftwareCard | None = None
    reports: dict[str, Installed] = field(default_factory=dict)

    def hear(self, delivery: Delivery) -> None:
        """Record a delivery; anything else is ignored."""
        place = topics.parse(delivery.topic)
        if place is None or place.kind != "software":
            return
        try:
            message = envelope.decode(delivery.payload) if delivery.payload else None
        except WireError:
            return
        if place.agent is None and isinstance(message, SoftwareCard | None):
            self.card = message
        elif isinstance(message, Installed) and message.agent == place.agent:
            self.reports[message.agent] = message


def read_published(link: Link, run: str) -> PublishedSoftware:
    """Return the retained messages, and keep the link subscribed to changes. Raises LinkError."""
    found = PublishedSoftware()
    for pattern in (topics.release_card(run, "software"), topics.serving(run, "+", "software")):
        link.subscribe(pattern)
    quiet = time.monotonic() + SETTLE
    while (now := time.monotonic()) < quiet:
        delivery = link.receive(quiet - now)
        if delivery is not None:
            found.hear(delivery)
            quiet = time.monotonic() + SETTLE
    return found
