"""A link that closes with unacknowledged messages logs them."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from coordinator.broker.local_broker import Broker
from coordinator.fleet.message_loop import MessageLoop
from federated.wire import envelope, messages, topics
from federated.wire.delivery_queue import DeliveryQueue
from federated.wire.link import LINK_DOWN
from federated.wire.links import mqtt as links
from federated.wire.links.mqtt import MqttLink
from tests.support.brokers import read_port
from tests.support.links import open_links, wait_for_delivery
from tests.support.proxy import Proxy
from tests.support.scripted_coordinator import CARD

pytestmark = pytest.mark.broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with brokers.start(port=0, directory=tmp_path) as started:
        yield started


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_closing_over_a_stuck_broker_logs_unacknowledged_messages(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "FAREWELL", 0.3)
    link, group = MqttLink(broker.address, "a"), os.getpgid(broker.pid)
    os.killpg(group, signal.SIGSTOP)
    try:
        for index in range(2):
            link.publish(topics.chunk(topics.upload("r", "a", "t"), index), b"x")
        link.publish(topics.status("r", "a"), b"x", retain=True)
        link.publish("elsewhere", b"x")
        link.publish(topics.heartbeat("r", "a"), b"x", qos=0)
        link.close()
    finally:
        os.killpg(group, signal.SIGCONT)
    assert warnings_of(caplog) == [
        f"mqtt://{broker.address}: the link of 'a' closed before the broker "
        "acknowledged 4 messages (2 chunk, 1 status, 1 other)"
    ]


def test_flush_waits_for_acknowledgements_and_returns_whether_they_came(broker: Broker) -> None:
    link, group = MqttLink(broker.address, "a"), os.getpgid(broker.pid)
    os.killpg(group, signal.SIGSTOP)
    try:
        link.publish("x", b"1")
        assert not link.flush(0.3)
    finally:
        os.killpg(group, signal.SIGCONT)
    assert link.flush(10)
    link.close()


@pytest.fixture
def full_link(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[MqttLink]:
    """A link whose network thread waits for room in a full queue, with more to come."""
    monkeypatch.setattr(links, "DeliveryQueue", partial(DeliveryQueue, deliveries=10))
    monkeypatch.setattr(links, "HOLD", 2.0)
    with open_links(broker.address, "a", "b") as (link, other):
        link.subscribe("many/+")
        for index in range(50):
            other.publish(f"many/{index}", b"x")
        assert other.flush(60.0)
        while link.backlog < 10:
            time.sleep(0.01)
        yield link


def test_acknowledgements_arrive_although_nobody_reads_a_full_queue(full_link: MqttLink) -> None:
    full_link.publish("x", b"1")
    assert full_link.flush(20.0)


def test_closing_does_not_wait_for_a_full_queue(
    full_link: MqttLink, caplog: pytest.LogCaptureFixture
) -> None:
    full_link.publish("x", b"1")
    began = time.monotonic()
    full_link.close()
    assert time.monotonic() - began < 20.0
    assert warnings_of(caplog) == []


def test_agents_learn_of_the_end_of_a_run_although_the_coordinators_link_was_down(
    broker: Broker, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(closing(Proxy(read_port(broker))))
        agent = stack.enter_context(closing(MqttLink(broker.address, "agent")))
        coordinator = MqttLink(f"127.0.0.1:{proxy.port}", "coordinator")
        fleet = MessageLoop(coordinator, CARD, tmp_path / "spool")
        fleet.endpoint.announce()
        agent.subscribe(topics.run(CARD.run))
        assert isinstance(
            envelope.decode(wait_for_delivery(agent, topics.run(CARD.run)).payload), messages.Run
        )
        proxy.cut()
        wait_for_delivery(coordinator, LINK_DOWN)
        threading.Timer(2.0, proxy.mend).start()
        fleet.dismiss("the run is over")
        coordinator.close()
        heard = [envelope.decode(wait_for_delivery(agent, topics.run(CARD.run)).payload)]
        # again, where the cut took its acknowledgement away
        while isinstance(heard[-1], messages.Run):
            heard.append(envelope.decode(wait_for_delivery(agent, topics.run(CARD.run)).payload))
        assert heard[-1] == messages.Goodbye("the run is over")


def test_closing_after_all_acknowledgements_logs_nothing(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    link = MqttLink(broker.address, "a")
    link.publish(topics.status("r", "a"), b"x")
    link.close()
    assert warnings_of(caplog) == []
