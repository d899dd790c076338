"""Check a broker that is not reached over MQTT, but by a link of an installed package, for example:
connection, run, rights, packet size, and an echo from the coordinator.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import closing

from edge_agent.doctor.broker_checks import check_coordinator, check_rights, find_card
from federated.errors import LinkError
from federated.wire import messages, topics
from federated.wire.checks import request_client
from federated.wire.checks.broker_capability_checks import report_packets
from federated.wire.checks.check_result import Check, report_error
from federated.wire.checks.network_checks import format_elapsed
from federated.wire.link import LINK_DOWN, LINK_UP, PROBES, Link, get_scheme
from federated.wire.links.catalogue import open_link

__all__ = ["check_link"]


class LinkClient:
    """A link as the checks use it: each request waits for its answer."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def publish(self, topic: str, payload: bytes, /) -> str:
        """Publish, and return why the broker did not take it, or an empty text."""
        self._link.publish(topic, payload)
        timeout = request_client.TIMEOUT
        return "" if self._link.flush(timeout) else f"no answer within {timeout:.0f} s"

    def subscribe(self, pattern: str) -> str:
        """Subscribe, and return an empty text: links report no refusals."""
        self._link.subscribe(pattern)
        return ""

    def receive(self, topic: str, timeout: float | None = None) -> bytes | None:
        """Return the next payload on a topic, or on any topic if it is empty; None at the timeout.
        Raises LinkError if the connection is lost.
        """
        deadline = time.monotonic() + (request_client.TIMEOUT if timeout is None else timeout)
        while (left := deadline - time.monotonic()) > 0:
            delivery = self._link.receive(left)
            if delivery is None:
                break
            if delivery.topic == LINK_DOWN:
                reason = delivery.payload.decode(errors="replace")
                raise LinkError(f"the connection was lost ({reason}): check the broker")
            if delivery.topic != LINK_UP and topic in ("", delivery.topic):
                return delivery.payload
        return None


def check_link(broker: str, run: str | None, name: str) -> Iterator[Check | messages.Run]:
    """Yield the checks, and the run's card if there is one. Raises UsageError and ConfigError for a
    scheme that is unknown or cannot be loaded, as `edge-agent join` does.
    """
    start, scheme = time.perf_counter(), get_scheme(broker)
    try:
        link = open_link(broker, f"doctor-{name[:40]}-{secrets.token_hex(4)}")
    except LinkError as error:
        remedy = "start the broker, or check the address"
        yield Check("link", "fail", str(error), remedy, error.exit_code)
        return
    with closing(link):
        yield Check("link", "ok", f"{scheme}: connected ({format_elapsed(start)})")
        try:
            yield from check_run(link, run, name)
        except LinkError as error:
            yield report_error("broker", error)


def check_run(link: Link, run: str | None, name: str) -> Iterator[Check | messages.Run]:
    """Yield the checks that need a connection. Raises LinkError if it is lost."""
    client = LinkClient(link)
    card, check = find_card(client, run)
    yield check
    if card is None:
        return
    yield card
    yield check_rights(client, card.run, name)
    passed, rate = link.probe(topics.probe(card.run, name), PROBES)
    yield report_packets(passed, rate)
    yield from check_coordinator(client, card.run, name)
