"""Links over real brokers: the largest packet of a broker, and timeouts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from coordinator.broker.local_broker import Broker
from federated.errors import LinkError
from federated.wire.links.mqtt import QUEUED_BYTES, MqttLink
from tests.support.links import open_links, wait_for_delivery

pytestmark = pytest.mark.broker
V311 = 4


def test_an_announced_limit_is_respected(mosquitto: Broker) -> None:
    with open_links(mosquitto.address, "a") as (link,):
        assert link.max_payload == 100_000 - 4096
        assert link.max_chunk == 100_000 - 2 * 4096
        with pytest.raises(
            LinkError,
            match=r"payload of 100000 bytes is over the broker's limit of 95904: lower wire.chunk",
        ):
            link.publish("x", bytes(100_000))
        link.subscribe("x")
        link.publish("x", bytes(link.max_payload))
        assert len(wait_for_delivery(link, "x").payload) == link.max_payload


def test_probing_finds_a_limit_that_is_not_announced(mosquitto: Broker) -> None:
    """MQTT 3.1.1 has no word for it: a broker just hangs up."""
    with open_links(mosquitto.address, "a", version=V311) as (link,):
        assert link.max_chunk == 256 << 10
        passed, rate = link.probe("p")
        assert passed == 96 << 10
        assert (link.max_payload, link.max_chunk) == (96 << 10, (96 << 10) - 4096)
        assert 1e4 < rate < 1e11


def test_probing_a_broker_without_a_low_limit_changes_nothing(tmp_path: Path) -> None:
    with (
        brokers.start(port=0, directory=tmp_path) as broker,
        open_links(broker.address, "a") as (link,),
    ):
        before = link.max_payload, link.max_chunk
        assert link.probe("p")[0] == (256 << 10) + 4096
        assert (link.max_payload, link.max_chunk) == before
        assert link.receive(0.2) is None


def test_a_packet_over_which_a_broker_hangs_up_fails_the_link_with_its_size(
    mosquitto: Broker,
) -> None:
    link = MqttLink(mosquitto.address, "a", version=V311)
    try:
        link.publish("big", bytes(200_000))
        with pytest.raises(
            LinkError,
            match=r"3 times at a packet of 200000 bytes \(big\).*lower wire.chunk",
        ):
            wait_for_delivery(link, "never", 30)
    finally:
        link.close()


@pytest.mark.timed
def test_publishing_to_a_stuck_broker_fails_after_a_timeout(
    mosquitto: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("federated.wire.links.mqtt.PATIENCE", 0.5)
    link = MqttLink(mosquitto.address, "a")
    group = mosquitto._process.pid
    os.killpg(group, signal.SIGSTOP)
    try:
        for _ in range(QUEUED_BYTES // 50_000):
            link.publish("x", bytes(50_000))
        start = time.monotonic()
        with pytest.raises(LinkError, match="acknowledged nothing"):
            link.publish("x", bytes(50_000))
        assert 0.5 <= time.monotonic() - start < 5
    finally:
        os.killpg(group, signal.SIGCONT)
        link.close()
