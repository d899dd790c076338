"""The inbox: in order, bounded, and never waiting for ever."""

from __future__ import annotations

import threading
import time

from federated.wire.delivery_queue import LINK_UP, Delivery, Inbox


def test_deliveries_come_out_in_order_and_then_nothing() -> None:
    inbox = Inbox()
    for i in range(3):
        assert inbox.put(Delivery(str(i), b""))
    assert [inbox.get(0).topic for _ in range(3)] == ["0", "1", "2"]  # type: ignore[union-attr]
    assert inbox.get(0.01) is None


def test_a_full_inbox_takes_nothing_by_number_or_by_bytes_except_events() -> None:
    for inbox in (Inbox(deliveries=1), Inbox(size=10)):
        assert inbox.put(Delivery("a", bytes(6)))
        assert not inbox.put(Delivery("b", bytes(6)), 0.01)
        assert inbox.put(Delivery(LINK_UP, b""), force=True)
        assert inbox.get(0) is not None


def test_one_delivery_larger_than_the_inbox_passes_alone() -> None:
    inbox = Inbox(size=10)
    assert inbox.put(Delivery("a", bytes(100)))
    assert not inbox.put(Delivery("b", b"x"))


def test_who_waits_for_room_goes_on_when_there_is_some() -> None:
    inbox = Inbox(deliveries=1)
    inbox.put(Delivery("a", b""))
    timer = threading.Timer(0.05, inbox.get, (0,))
    timer.start()
    assert inbox.put(Delivery("b", b""), 5.0)
    timer.join()


def test_closing_wakes_who_waits_and_leaves_what_is_there() -> None:
    inbox = Inbox()
    timer = threading.Timer(0.05, inbox.close)
    timer.start()
    start = time.monotonic()
    assert inbox.get(10.0) is None
    assert time.monotonic() - start < 5
    timer.join()
    assert not inbox.put(Delivery("a", b""))
