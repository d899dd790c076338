"""Properties that agents and coordinator require of every kind of link.

TRY_LINK=SCHEME://ADDRESS tries a link of your own, which its relay or broker must serve already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from coordinator.broker import local as brokers
from federated.errors import LinkError
from federated.wire.link import Delivery, Link, Will
from federated.wire.links.catalogue import LINKS, open_link
from tests.support.tcp_link import TcpHub
from tests.support.tried import list_tried

Connect = Callable[..., Link]
KINDS = ("memory", "toytcp", pytest.param("mqtt", marks=pytest.mark.broker))
ROOM = f"laws-{os.getpid()}"  # of topics: a relay of your own may retain those of other tries


@pytest.fixture(params=list_tried("link", ()) or KINDS)
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Opens a link under a client's name, and closes it after the test."""
    with ExitStack() as stack:
        match request.param:
            case "memory":
                address = f"memory://{tmp_path.name}"
            case "toytcp":
                hub = stack.enter_context(closing(TcpHub()))
                address = hub.address.replace("toytcp", "tests.support.tcp_link:open_tcp_link")
            case "mqtt":
                made = brokers.start(port=0, kind="embedded", directory=tmp_path)
                address = stack.enter_context(made).address
            case other:
                address = other

        def open_one(name: str, will: Will | None = None) -> Link:
            return stack.enter_context(closing(open_link(address, f"{ROOM}-{name}", will)))

        yield open_one


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
