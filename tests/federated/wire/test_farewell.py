"""What a link says when it closes with messages that nobody acknowledged."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator import broker as brokers
from coordinator.broker import Broker
from federated.wire import link as links
from federated.wire import topics
from federated.wire.link import MqttLink

pytestmark = pytest.mark.broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with brokers.start(port=0, directory=tmp_path) as started:
        yield started


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_closing_over_a_stuck_broker_says_what_was_not_acknowledged(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "FAREWELL", 0.3)
    link, group = MqttLink(broker.address, "a"), os.getpgid(broker._process.pid)
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
        f"mqtt://{broker.address}: the link of 'a' closed before the broker acknowledged 4 messages (2 chunk, 1 status, 1 other)"
    ]


def test_closing_after_everything_was_acknowledged_says_nothing(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    link = MqttLink(broker.address, "a")
    link.publish(topics.status("r", "a"), b"x")
    link.close()
    assert warnings_of(caplog) == []
