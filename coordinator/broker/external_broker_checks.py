"""Check a broker that the coordinator did not start: all of it for `coordinator doctor`, and what a
run adapts to when it starts.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator

from coordinator.broker.broker_profiles import Profile, limit_link
from federated.errors import EspalierError, LinkError
from federated.runtime.console import Say
from federated.wire import topics
from federated.wire.checks.broker_capability_checks import (
    LEVELS,
    PACKETS,
    WILDCARDS,
    Place,
    report_packets,
    try_basics,
    try_broker,
)
from federated.wire.checks.check_result import Check, report_error
from federated.wire.checks.network_checks import check_credentials, check_network
from federated.wire.checks.request_client import Client
from federated.wire.link import PROBES, Link, get_scheme
from federated.wire.mqtt_address import PORTS, parse_mqtt_address

__all__ = ["adapt", "examine_broker"]

log = logging.getLogger(__name__)

FOR_CHUNKS = (LEVELS, PACKETS)  # checks of what only transfers in chunks need
RUN = "doctor"  # stands for a run in topics if none is given


def adapt(
    link: Link,
    address: str,
    run: str,
    say: Say,
    *,
    chunks: bool = True,
    profile: Profile | None = None,
) -> bool:
    """Try what a broker can do, say what is missing, and use messages that it accepts. Return
    whether it sends no retained message to a subscription with a wildcard.

    Wills, sessions and shared subscriptions are not tried: this takes 4 s and more, and a run has
    nothing to adapt to them. It watches heartbeats and repeats what may be lost in any case, and
    shares no subscription.

    chunks: whether weights and updates are sent over the broker.
    profile: documented limits of the broker.
    """
    if get_scheme(address) not in PORTS:
        return False  # a link of another package promises what runs need
    place = Place(parse_mqtt_address(address), run, _make_name())
    by_name_only = profile is not None and not profile.wildcards
    limit_link(link, profile)
    try:
        checks = [*try_basics(place), report_packets(*link.probe(place.topic, PROBES))]
    except LinkError as error:  # the run's own link waits for the broker
        log.warning("cannot try what the broker can do: %s", error)
        return by_name_only
    for check in checks:
        by_name_only |= check.name == WILDCARDS and check.state != "ok"
        if check.state != "ok" and (chunks or check.name not in FOR_CHUNKS):
            say(f"the broker at {place.address}: {check.found}: {check.remedy}")
    return by_name_only


def examine_broker(broker: str, run: str | None) -> Iterator[Check]:
    """Yield all checks, up to the first failure that the next ones depend on. Raises UsageError for
    a malformed address, ConfigError.
    """
    address = parse_mqtt_address(broker)
    place = Place(address, run or RUN, _make_name())
    topics.probe(place.run, place.name)  # rejects an invalid name before the first check
    for check in check_network(address):
        yield check
        if check.state == "fail":
            return
    try:
        with Client(address, place.name) as client:
            yield check_credentials(address, client)
        yield from try_broker(place)
    except EspalierError as error:
        yield report_error("broker", error)


def _make_name() -> str:
    """Return a name for test messages that no agent has."""
    return f"coordinator-{secrets.token_hex(4)}"
