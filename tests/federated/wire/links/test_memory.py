"""The broker in memory behaves as a real broker."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from federated.errors import LinkError
from federated.wire.link import LINK_DOWN, LINK_UP, Delivery
from federated.wire.links.memory import MemoryBroker, MemoryLink


def drain(link: MemoryLink) -> list[tuple[str, bytes, bool]]:
    found = []
    while (delivery := link.receive(0)) is not None:
        found.append((delivery.topic, delivery.payload, delivery.retained))
    return found


def test_a_message_reaches_each_subscriber_once_in_order() -> None:
    broker = MemoryBroker()
    a, b, c = (MemoryLink(broker, name) for name in "abc")
    b.subscribe("x/+")
    b.subscribe("x/#")
    c.subscribe("y")
    a.publish("x/1", b"one")
    a.publish("x/2", bytearray(b"two"))
    assert drain(b) == [("x/1", b"one", False), ("x/2", b"two", False)]
    assert drain(a) == drain(c) == []
    assert (a.sent_bytes, b.received_bytes) == (12, 12)


def test_retained_messages_come_with_each_subscription_until_cleared() -> None:
    broker = MemoryBroker()
    a, b = MemoryLink(broker, "a"), MemoryLink(broker, "b")
    a.publish("x/1", b"old", retain=True)
    a.publish("x/1", b"new", retain=True)
    a.publish("x/2", b"passing")
    b.subscribe("x/+")
    b.subscribe("x/1")
    assert drain(b) == [("x/1", b"new", True)] * 2
    a.publish("x/1", b"", retain=True)
    assert drain(b) == [("x/1", b"", False)]
    b.unsubscribe("x/1")
    b.subscribe("x/1")
    assert drain(b) == []


def test_unsubscribed_patterns_are_not_delivered() -> None:
    broker = MemoryBroker()
    a, b = MemoryLink(broker, "a"), MemoryLink(broker, "b")
    b.subscribe("x")
    b.unsubscribe("x")
    a.publish("x", b"1")
    assert drain(b) == []


def test_a_will_is_published_after_a_crash_and_not_after_close() -> None:
    broker = MemoryBroker()
    watcher = MemoryLink(broker, "w")
    watcher.subscribe("will/+")
    MemoryLink(broker, "a", ("will/a", b"gone")).close()
    MemoryLink(broker, "b", ("will/b", b"gone")).kill()
    assert drain(watcher) == [("will/b", b"gone", False)]
    assert broker.retained == {"will/b": b"gone"}


def test_a_second_link_of_a_name_disconnects_the_first() -> None:
    broker = MemoryBroker()
    first = MemoryLink(broker, "a", ("will", b"gone"))
    second = MemoryLink(broker, "a")
    assert broker.retained == {"will": b"gone"}
    with pytest.raises(LinkError, match="closed"):
        first.publish("x", b"")
    with pytest.raises(LinkError, match="closed"):
        first.receive(0)
    second.subscribe("x")
    second.publish("x", b"1")
    assert drain(second) == [("x", b"1", False)]


def test_messages_wait_in_both_directions_while_a_link_is_down_and_heartbeats_do_not() -> None:
    broker = MemoryBroker()
    a, b = MemoryLink(broker, "a", ("will", b"gone")), MemoryLink(broker, "b")
    a.subscribe("to-a")
    b.subscribe("#")
    a.drop()
    assert drain(b) == [("will", b"gone", False)]
    assert drain(a) == [(LINK_DOWN, b"dropped", False)]
    a.publish("from-a", b"1")
    a.publish("beat", b"1", qos=0)
    b.publish("to-a", b"2")
    b.publish("to-a", b"beat", qos=0)
    assert drain(a) == []
    a.restore()
    assert drain(a) == [(LINK_UP, b"", False), ("to-a", b"2", False)]
    assert ("from-a", b"1", False) in drain(b)


def test_tampering_drops_repeats_and_corrupts_what_is_delivered_and_not_what_is_retained() -> None:
    def tamper(delivery: Delivery) -> Iterable[Delivery]:
        if delivery.topic == "drop":
            return []
        return [delivery, Delivery(delivery.topic, b"bad", delivery.retained)]

    broker = MemoryBroker(tamper=tamper)
    link = MemoryLink(broker, "a")
    link.subscribe("#")
    link.publish("drop", b"1", retain=True)
    link.publish("x", b"2", retain=True)
    assert drain(link) == [("x", b"2", False), ("x", b"bad", False)]
    assert broker.retained == {"drop": b"1", "x": b"2"}


def test_a_payload_over_the_limit_is_rejected_and_probing_finds_the_limit() -> None:
    link = MemoryLink(MemoryBroker(max_payload=100_000), "a")
    assert link.max_chunk == 100_000 - 4096
    with pytest.raises(LinkError, match=r"over the broker's limit of 100000.*wire.chunk"):
        link.publish("x", bytes(100_001))
    passed, rate = link.probe("p", (200_000, 96_000, 32_000))
    assert passed == 96_000
    assert rate > 0
    with pytest.raises(LinkError, match="no payload"):
        link.probe("p", (200_000,))


def test_a_route_changes_with_the_subscriptions_to_patterns() -> None:
    broker = MemoryBroker()
    a, b = MemoryLink(broker, "a"), MemoryLink(broker, "b")
    a.publish("x/1", b"early")
    b.subscribe("x/+")
    a.publish("x/1", b"heard")
    b.unsubscribe("x/+")
    a.publish("x/1", b"late")
    assert drain(b) == [("x/1", b"heard", False)]
