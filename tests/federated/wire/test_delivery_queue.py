"""The queue keeps the order, is bounded, and never waits forever."""

from __future__ import annotations

import threading
import time

from federated.wire.delivery_queue import FLOODED, LARGE, DeliveryQueue
from federated.wire.link import CHUNK, LINK_UP, Delivery
from federated.wire.topics import find_sender, run, status


def test_deliveries_come_out_in_order_and_then_nothing() -> None:
    queue = DeliveryQueue()
    for i in range(3):
        assert queue.put(Delivery(str(i), b""))
    assert [queue.get(0).topic for _ in range(3)] == ["0", "1", "2"]  # type: ignore[union-attr]
    assert queue.get(0.01) is None


def test_a_full_queue_accepts_only_events() -> None:
    for queue in (DeliveryQueue(deliveries=1), DeliveryQueue(size=10)):
        assert queue.put(Delivery("a", bytes(6)))
        assert not queue.put(Delivery("b", bytes(6)), 0.01)
        assert queue.put(Delivery(LINK_UP, b""), force=True)
        assert queue.get(0) is not None


def test_one_delivery_may_exceed_the_size_of_an_empty_queue() -> None:
    queue = DeliveryQueue(size=10)
    assert queue.put(Delivery("a", bytes(100)))
    assert not queue.put(Delivery("b", b"x"))


def test_a_waiting_put_continues_when_there_is_room() -> None:
    queue = DeliveryQueue(deliveries=1)
    queue.put(Delivery("a", b""))
    timer = threading.Timer(0.05, queue.get, (0,))
    timer.start()
    assert queue.put(Delivery("b", b""), 5.0)
    timer.join()


def test_a_put_that_waits_continues_once_half_of_a_full_queue_is_free() -> None:
    """Otherwise two threads take turns at each delivery of a flood."""
    queue = DeliveryQueue(deliveries=4)
    for name in "abcd":
        queue.put(Delivery(name, b""))
    done = threading.Event()
    waiting = threading.Thread(target=lambda: queue.put(Delivery("e", b""), 60.0) and done.set())
    waiting.start()
    queue.get(0)
    assert not done.wait(0.1)
    queue.get(0)
    assert done.wait(60.0)
    waiting.join()
    assert [queue.get(0).topic for _ in range(3)] == ["c", "d", "e"]  # type: ignore[union-attr]


def test_closing_wakes_waiting_threads_and_keeps_deliveries() -> None:
    queue = DeliveryQueue()
    timer = threading.Timer(0.05, queue.close)
    timer.start()
    start = time.monotonic()
    assert queue.get(10.0) is None
    assert time.monotonic() - start < 5
    timer.join()
    assert not queue.put(Delivery("a", b""))


def test_a_flood_of_one_sender_leaves_room_for_others() -> None:
    queue = DeliveryQueue(deliveries=10, share=3, find_sender=find_sender)
    flood, honest = status("r", "flood"), status("r", "honest")
    assert [queue.put(Delivery(flood, b""), 60.0) for _ in range(5)] == [True] * 3 + [False] * 2
    assert queue.put(Delivery(honest, b""))
    assert queue.put(Delivery(run("r"), b""))
    queue.get(0)
    assert queue.put(Delivery(flood, b"")), "its share is free again"


def test_large_messages_of_one_sender_leave_room_for_others() -> None:
    """Four packets of 16 MB filled the queue, and each further one held it for all."""
    queue = DeliveryQueue(find_sender=find_sender)
    flood = Delivery(status("r", "flood"), bytes(16 << 20))
    start = time.monotonic()
    assert [queue.put(flood, 60.0) for _ in range(5)] == [True] + [False] * 4
    assert queue.put(Delivery(status("r", "honest"), bytes(CHUNK)))
    assert time.monotonic() - start < 30
    assert queue.get(0) == flood
    assert queue.put(flood), "its share is free again"


def test_few_large_messages_beyond_its_share_make_a_sender_a_flooder() -> None:
    queue = DeliveryQueue(size_share=1, find_sender=find_sender)
    flood = Delivery(status("r", "flood"), bytes(99 * LARGE))
    for _ in range(1 + FLOODED // 100):
        assert queue.take_flooders() == frozenset()
        queue.put(flood)
    assert queue.take_flooders() == {"flood"}


def test_topics_of_blocked_senders_are_told() -> None:
    queue = DeliveryQueue(find_sender=find_sender)
    queue.block(frozenset({"flood"}))
    assert queue.blocks(status("r", "flood"))
    assert not queue.blocks(status("r", "honest"))
    assert not queue.blocks(run("r"))


def test_a_sender_that_goes_on_after_its_share_is_full_is_a_flooder() -> None:
    queue = DeliveryQueue(share=1, find_sender=find_sender)
    flood = Delivery(status("r", "flood"), b"")
    queue.put(flood)
    for _ in range(FLOODED - 1):
        queue.put(flood)
    assert queue.take_flooders() == frozenset()
    queue.put(flood)
    assert queue.take_flooders() == {"flood"}
    assert queue.take_flooders() == frozenset(), "the count starts again"


def test_a_sender_is_no_flooder_if_its_messages_were_handled_in_between() -> None:
    queue = DeliveryQueue(share=1, find_sender=find_sender)
    busy = Delivery(status("r", "busy"), b"")
    for _ in range(2):
        for _ in range(FLOODED):
            queue.put(busy)
        assert queue.get(0) == busy
    assert queue.take_flooders() == frozenset()
