"""Properties that agents and coordinator require of every kind of link.

TRY_LINK=SCHEME://ADDRESS tries a link of your own, which its relay or broker must serve already.
With an address SCHEME://HOST:PORT, its connection is also cut, by a proxy between both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from federated.errors import LinkError
from federated.wire.link import LINK_DOWN, LINK_UP, Delivery, Link, Will
from federated.wire.links.catalogue import LINKS, open_link
from federated.wire.links.memory import MemoryLink
from tests.support.brokers import needs_mosquitto, open_websockets
from tests.support.member_names import list_tried
from tests.support.proxy import Proxy
from tests.support.tcp_link import TcpHub

Connect = Callable[..., Link]
KINDS = (
    "memory",
    "toytcp",
    pytest.param("mqtt", marks=pytest.mark.broker),
    pytest.param("ws", marks=[pytest.mark.broker, needs_mosquitto]),
)
UNDER_WAY, MESSAGES = 40, 60  # published before a cut, and in all
ROOM = f"laws-{os.getpid()}"  # of topics: a relay of your own may retain those of other tries


@pytest.fixture(params=list_tried("link", ()) or KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Serves one kind of link at an address."""
    match request.param:
        case "memory":
            yield f"memory://{tmp_path.name}"
        case "toytcp":
            with closing(TcpHub()) as hub:
                yield hub.address.replace("toytcp", "tests.support.tcp_link:open_tcp_link")
        case "mqtt":
            with brokers.start(port=0, kind="embedded", directory=tmp_path) as broker:
                yield f"mqtt://{broker.address}"
        case "ws":
            with open_websockets(tmp_path) as url:
                yield url
        case other:
            yield other


@pytest.fixture
def connect(address: str) -> Iterator[Connect]:
    """Opens a link under a client's name, and closes it after the test."""
    with ExitStack() as stack:

        def open_one(name: str, will: Will | None = None) -> Link:
            return stack.enter_context(closing(open_link(address, f"{ROOM}-{name}", will)))

        yield open_one


@dataclass(frozen=True)
class Cable:
    """A link whose connection can be cut: until `mend`, it cannot connect again."""

    link: Link
    cut: Callable[[], None]
    mend: Callable[[], None]


@pytest.fixture
def cable(address: str) -> Iterator[Cable]:
    """The link of a client with the will (will, gone)."""
    name, will = f"{ROOM}-cable", (f"{ROOM}/will", b"gone")
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    with ExitStack() as stack:
        if port.isdecimal():
            proxy = stack.enter_context(closing(Proxy(int(port), host=host)))
            cut, mend, address = proxy.cut, proxy.mend, f"{scheme}://127.0.0.1:{proxy.port}"
        link = stack.enter_context(closing(open_link(address, name, will)))
        if isinstance(link, MemoryLink):
            cut, mend = link.drop, link.restore
        elif not port.isdecimal():
            pytest.skip(f"no connection of {scheme}:// can be cut without HOST:PORT")
        yield Cable(link, cut, mend)


def drain(link: Link, name: str) -> list[Delivery]:
    """All deliveries until a message that the link sends to itself."""
    topic, found = f"{ROOM}/sync/{name}", list[Delivery]()
    link.subscribe(topic)
    link.publish(topic, b"sync")
    while (delivery := link.receive(10)) is not None:
        if delivery.topic == topic:
            return found
        found.append(delivery)
    raise AssertionError("a link must receive what it sends to itself")


def test_the_laws_are_tried_on_every_built_in_link() -> None:
    assert {LINKS[scheme] for scheme in ("memory", "mqtt")} == set(LINKS.values())


def test_messages_arrive_in_order_at_their_subscribers(connect: Connect) -> None:
    a, b = connect("a"), connect("b")
    b.subscribe(f"{ROOM}/+/x")
    drain(b, "b")
    for payload in (b"1", bytearray(b"2"), memoryview(b"3"), b""):
        a.publish(f"{ROOM}/1/x", payload)
    a.publish(f"{ROOM}/1/y", b"no")
    assert drain(a, "a") == []
    assert drain(b, "b") == [Delivery(f"{ROOM}/1/x", p) for p in (b"1", b"2", b"3", b"")]
    b.unsubscribe(f"{ROOM}/+/x")
    drain(b, "b")
    a.publish(f"{ROOM}/1/x", b"4")
    drain(a, "a")
    assert drain(b, "b") == []


def test_retained_messages_come_with_each_subscription_until_cleared(connect: Connect) -> None:
    a, b, topic = connect("a"), connect("b"), f"{ROOM}/kept"
    a.publish(topic, b"old", retain=True)
    a.publish(topic, b"new", retain=True)
    drain(a, "a")
    for _ in range(2):
        b.subscribe(topic)
        assert drain(b, "b") == [Delivery(topic, b"new", retained=True)]
    a.publish(topic, b"", retain=True)
    drain(a, "a")
    assert drain(b, "b") == [Delivery(topic, b"")]
    b.subscribe(topic)
    assert drain(b, "b") == []


def test_a_closed_link_leaves_no_will_and_receives_nothing(connect: Connect) -> None:
    a, b = connect("a", (f"{ROOM}/will", b"gone")), connect("b")
    b.subscribe(f"{ROOM}/will")
    assert b.receive(0) is None
    drain(b, "b")
    a.close()
    a.close()
    assert drain(b, "b") == []
    with pytest.raises(LinkError):
        a.receive(0)


def test_a_second_link_of_a_client_disconnects_the_first(connect: Connect) -> None:
    first = connect("twin")
    drain(first, "twin")
    connect("twin")
    with suppress(LinkError):  # a link may also end for good
        wait_for(first, LINK_DOWN)


def test_bytes_and_deliveries_are_counted(connect: Connect) -> None:
    a, b, topic = connect("a"), connect("b"), f"{ROOM}/count"
    b.subscribe(topic)
    drain(b, "b")
    before = a.sent_bytes, b.received_bytes
    a.publish(topic, b"12345")
    assert a.sent_bytes - before[0] == len(topic) + 5
    drain(a, "a")
    drain(b, "b")
    assert b.received_bytes - before[1] >= len(topic) + 5
    assert b.backlog == 0


def test_the_limit_of_payloads_is_kept_and_probed(connect: Connect) -> None:
    link = connect("a")
    assert link.max_chunk < link.max_payload
    size, rate = link.probe(f"{ROOM}/probe", (64 << 10, 1 << 10))
    assert size <= link.max_payload
    assert rate > 0
    if link.max_payload <= 1 << 24:  # no test allocates more
        with pytest.raises(LinkError):
            link.publish(f"{ROOM}/large", bytes(link.max_payload + 1))


def wait_for(link: Link, topic: str, payload: bytes | None = None) -> None:
    """Receive until a delivery of the topic comes, for up to 30 s."""
    until = time.monotonic() + 30
    while (left := until - time.monotonic()) > 0:
        found = link.receive(left)
        if found is not None and found.topic == topic and payload in (None, found.payload):
            return
    raise AssertionError(f"no delivery of {topic}")


def test_a_cut_connection_is_reported_and_returns_with_its_subscriptions(
    connect: Connect, cable: Cable
) -> None:
    peer, topic, old, will = (connect("peer"), *(f"{ROOM}/{x}" for x in ("news", "old", "will")))
    peer.subscribe(will)
    cable.link.subscribe(topic)
    cable.link.subscribe(old)
    cable.link.unsubscribe(old)
    drain(cable.link, "cable")
    drain(peer, "peer")
    cable.cut()
    wait_for(cable.link, LINK_DOWN)
    wait_for(peer, will, b"gone")
    late = connect("late")
    late.subscribe(will)
    assert drain(late, "late") == [Delivery(will, b"gone", retained=True)]
    peer.publish(will, b"", retain=True)
    cable.mend()
    wait_for(cable.link, LINK_UP)
    peer.publish(old, b"unwanted")
    peer.publish(topic, b"after")
    seen = list[str]()
    while (delivery := cable.link.receive(30)) is not None and delivery.topic != topic:
        seen.append(delivery.topic)
    assert delivery == Delivery(topic, b"after")
    assert old not in seen


def test_no_message_that_was_flushed_is_lost_in_a_cut(connect: Connect, cable: Cable) -> None:
    """Some are under way when the connection is cut, others are published while it is down: fewer
    than a link keeps before `publish` waits. They may arrive twice.
    """
    peer, topic = connect("peer"), f"{ROOM}/numbers"
    peer.subscribe(topic)
    drain(peer, "peer")
    assert cable.link.flush(10)
    for number in range(UNDER_WAY):
        cable.link.publish(topic, b"%d" % number)
    cable.cut()
    wait_for(cable.link, LINK_DOWN)
    for number in range(UNDER_WAY, MESSAGES):
        cable.link.publish(topic, b"%d" % number)
    assert not cable.link.flush(0.1)
    cable.mend()
    assert cable.link.flush(30)
    arrived = {int(delivery.payload) for delivery in drain(peer, "end") if delivery.topic == topic}
    assert arrived == set(range(MESSAGES))
