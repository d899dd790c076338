"""Try what a broker can do: the same table for `edge-agent doctor` and `coordinator doctor`. When a
coordinator starts, it tries what it can adapt to (`try_basics`).

The messages reach only clients that test this broker under the same name.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass

from federated.errors import LinkError
from federated.wire import topics
from federated.wire.checks import request_client
from federated.wire.checks.check_result import Check
from federated.wire.checks.request_client import Client
from federated.wire.checks.websocket_checks import check_websockets
from federated.wire.link import CHUNK, OVERHEAD, PROBES, Will
from federated.wire.links import mqtt_client_setup as mqtt
from federated.wire.mqtt_address import MqttAddress

__all__ = [
    "LEVELS",
    "PACKETS",
    "WILDCARDS",
    "Place",
    "check_order",
    "report_packets",
    "try_basics",
    "try_broker",
]

# names of the checks that a coordinator adapts to
LEVELS, PACKETS, WILDCARDS = "levels", "packets", "wildcards"
MESSAGES = 50  # whose order is checked
SHARED = 20  # that two subscribers share
LONG = 225  # characters of the longest name of a transfer
COPIES = 4  # of a message to a client whose connection broke
PACKET = "raise the broker's packet limit (mosquitto: max_packet_size)"


@dataclass(frozen=True)
class Place:
    """Where a client tries a broker.

    address: of the broker.
    run, name: an agent's, which has the rights to publish and to subscribe there.
    """

    address: MqttAddress
    run: str
    name: str

    @property
    def topic(self) -> str:
        return topics.probe(self.run, self.name)

    def connect(self, will: Will | None = None) -> Client:
        """Connect a client of its own, for one check. Raises LinkError."""
        return Client(self.address, self._make_id(), will)

    def make_setup(self) -> mqtt.ClientSetup:
        return mqtt.ClientSetup(self.address, self._make_id())

    def _make_id(self) -> str:
        return f"doctor-{self.name[:40]}-{secrets.token_hex(4)}"


def try_broker(place: Place) -> Iterator[Check]:
    """Yield all checks. A failed one means that no run can work. Raises LinkError if the broker
    cannot be reached any more.
    """
    yield from try_basics(place)
    for check in (check_packets, check_will, check_session, check_shared):
        yield check(place)


def try_basics(place: Place) -> Iterator[Check]:
    """Yield the checks that take no time at a broker that passes them. Raises LinkError."""
    yield check_order(place)
    yield from check_retained(place)
    yield check_levels(place)
    yield check_length(place)
    if place.address.path is not None:
        with place.connect() as sender, place.connect() as receiver:
            yield check_websockets(sender, receiver, place.topic)


def check_order(place: Place) -> Check:
    """Check that messages arrive, and in the order in which they were published."""
    word = secrets.token_hex(4)
    words = [f"{word} {i}".encode() for i in range(MESSAGES)]
    with place.connect() as sender, place.connect() as receiver:
        refusal = receiver.subscribe(place.topic) or sender.publish(place.topic, *words)
        arrived = dict[bytes, str]()  # may come twice
        while len(arrived) < MESSAGES:
            found = receiver.receive_any(request_client.TIMEOUT / 2)
            if found is None:
                break
            if found[1] in words:
                arrived.setdefault(found[1], found[0])
    if altered := set(arrived.values()) - {place.topic}:
        return Check(
            "order",
            "fail",
            f"messages on {place.topic} arrive on {min(altered)}",
            "choose names of runs and agents without '.' (--run, --name)",
            5,
        )
    if refusal or len(arrived) < MESSAGES:
        return Check(
            "order",
            "fail",
            f"{len(arrived)} of {MESSAGES} messages on {place.topic} arrive"
            + (f" ({refusal})" if refusal else ""),
            "check this client's rights, and the broker's limits (queue, rate); update NATS 2.9, "
            "which may deliver none after it was killed",
            5,
        )
    if list(arrived) != words:
        return Check(
            "order",
            "warn",
            f"{MESSAGES} messages arrive in another order than they were sent",
            "runs work, but a late status may replace a newer one: configure the broker to keep "
            "the order of each client's messages",
        )
    return Check("order", "ok", f"{MESSAGES} messages arrive in their order")


def check_retained(place: Place) -> Iterator[Check]:
    """Check that a subscription gets a message that the broker retained: by the topic's name, and
    by a pattern with a wildcard.
    """
    word = secrets.token_bytes(8)

    def is_delivered(pattern: str) -> bool:
        with place.connect() as late:
            late.subscribe(pattern)
            return late.hears(word, request_client.TIMEOUT / 2)

    with place.connect() as sender:
        sender.publish(place.topic, word, retain=True)
        try:
            by_name, by_pattern = map(is_delivered, (place.topic, topics.any_probe(place.run)))
        finally:
            sender.publish(place.topic, b"", retain=True)
    if by_name:
        yield Check("retained", "ok", "retained messages reach a later subscriber")
    else:
        yield Check(
            "retained",
            "fail",
            "retained messages do not reach a later subscriber",
            "enable retained messages at the broker: agents download weights that it retains",
            5,
        )
    if by_pattern:
        yield Check(WILDCARDS, "ok", "also one that subscribes with a wildcard")
    elif by_name:
        yield Check(
            WILDCARDS,
            "warn",
            "retained messages do not reach a subscription with a wildcard, as at RabbitMQ",
            "runs work; join takes up to 10 s longer without --run, infer needs --run, and a "
            "release publishes all of its files again",
        )


def check_levels(place: Place) -> Check:
    """Check that a topic may have as many levels as an update's chunks need."""
    topic = topics.deep_probe(place.run, place.name, 1)
    if refusal := find_refusal(place, topic):
        return Check(
            LEVELS,
            "fail",
            f"topics with {topic.count('/')} slashes are refused ({refusal})",
            "updates are sent on such topics: use a broker that accepts them, or let transfers use "
            "HTTP (http.listen)",
            5,
        )
    return Check(LEVELS, "ok", f"topics may have {topic.count('/')} slashes")


def check_length(place: Place) -> Check:
    """Check that a topic may be as long as long names of runs, agents and submodels make it."""
    topic = topics.deep_probe(place.run, place.name, LONG)
    if refusal := find_refusal(place, topic):
        return Check(
            "length",
            "warn",
            f"topics with {len(topic)} characters are refused ({refusal})",
            "keep the names of runs and agents short",
        )
    return Check("length", "ok", f"topics may have {len(topic)} characters")


def find_refusal(place: Place, topic: str) -> str:
    """Return why the broker refuses a message on a topic; empty if it does not."""
    with place.connect() as client:
        try:
            return client.publish(topic, b"0")
        except LinkError as error:
            return str(error).partition(":")[0]


def check_packets(place: Place) -> Check:
    """Measure the largest relevant payload that the broker accepts."""
    with place.connect() as client:
        limit, version = client.max_packet, client.protocol
    stated = f"the broker states {limit} bytes; " if limit < mqtt.MAX_PACKET else ""
    try:
        passed, rate = mqtt.measure(
            place.make_setup(),
            place.topic,
            PROBES,
            limit=limit - OVERHEAD,
            version=version,
            timeout=10.0,
        )
    except LinkError as error:
        found, _, remedy = str(error).removeprefix(f"{place.address}: ").partition(": ")
        return Check(PACKETS, "fail", stated + found, remedy, 5)
    return report_packets(passed, rate, stated)


def report_packets(passed: int, rate: float, stated: str = "") -> Check:
    """Report the largest payload that the broker accepted (bytes), and bytes per second. stated:
    limit that the broker states.
    """
    found = f"{stated}{passed} bytes accepted, uplink {rate / 1e6:.3g} MB/s"
    if passed >= CHUNK + OVERHEAD:
        return Check(PACKETS, "ok", found)
    return Check(PACKETS, "warn", found, f"transfers work, in small chunks; {PACKET}")


def check_will(place: Place) -> Check:
    """Check that the broker publishes the last will of a client that vanishes."""
    word, arrived = secrets.token_bytes(8), False
    with place.connect() as watcher:
        watcher.subscribe(place.topic)
        with contextlib.suppress(LinkError), place.connect((place.topic, word)) as lost:
            lost.vanish()
            arrived = watcher.hears(word, request_client.TIMEOUT)
            watcher.publish(place.topic, b"", retain=True)
    if arrived:
        return Check("will", "ok", "a lost client's last will is published")
    return Check(
        "will",
        "warn",
        "a lost client's last will is not published",
        "runs work, but a lost agent is noticed only by its missing heartbeats: let clients set "
        "a last will",
    )


def check_session(place: Place) -> Check:
    """Check that messages wait for a client whose connection broke."""
    word = secrets.token_bytes(8)
    with place.connect() as away, place.connect() as sender:
        away.subscribe(place.topic)
        away.interrupt()
        # the first copies may still go to the broken connection: NATS repeats those after 30 s
        for _ in range(COPIES):
            sender.publish(place.topic, word)
            time.sleep(0.2)
        arrived = away.hears(word, 2 * request_client.TIMEOUT)  # it waits before it reconnects
    if arrived:
        return Check("session", "ok", "messages wait for a client whose connection broke")
    return Check(
        "session",
        "warn",
        "messages to a client whose connection broke are lost",
        "runs work, but repeat what was lost: let the broker keep sessions for at least an hour",
    )


def check_shared(place: Place) -> Check:
    """Report whether clients can share a subscription. No run needs it yet."""
    word = secrets.token_hex(4)
    words = [f"{word} {i}".encode() for i in range(SHARED)]
    pattern = topics.shared(f"g{word}", place.topic)
    try:
        with place.connect() as sender, place.connect() as one, place.connect() as other:
            refused = one.subscribe(pattern) or other.subscribe(pattern)
            sender.publish(place.topic, *words)
            counts = [0, 0] if refused else [count(member, words) for member in (one, other)]
    except LinkError:  # the broker closed the connection
        counts = [0, 0]
    works = sum(counts) == SHARED and all(counts)
    found = "clients can share a subscription" if works else "clients cannot share a subscription"
    return Check("shared", "ok", f"{found}; not needed")


def count(member: Client, words: list[bytes]) -> int:
    """Return how many of these messages a client receives."""
    found = 0
    while (message := member.receive_any(request_client.TIMEOUT / 10)) is not None:
        found += message[1] in words
    return found
