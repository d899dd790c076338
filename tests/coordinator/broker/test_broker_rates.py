"""The rates of AWS IoT Core, enforced by a proxy: it discards messages beyond those of a second,
and delays bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.raw_agents.raw_agent import Raw
from benchmarks.raw_agents.raw_fleet import RawFleet
from coordinator.broker.broker_profiles import PROFILES, limit_link
from federated.wire.links.mqtt import MqttLink
from tests.support.broker_rates import RateProxy
from tests.support.brokers import Limited, needs_mosquitto, open_limited
from tests.support.links import open_links, wait_for_delivery
from tests.support.processes import COORDINATOR, Start
from tests.support.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.broker, needs_mosquitto]
AWS = PROFILES["aws"]
TOPIC = "fl/v1/r/agent/a/probe"


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Limited]:
    with open_limited(tmp_path, AWS) as opened:
        yield opened


def read_rates(limited: Limited) -> RateProxy:
    assert limited.rates is not None
    return limited.rates


def test_a_broker_discards_messages_beyond_its_rate(limited: Limited) -> None:
    with open_links(limited.address, "a") as (link,):
        for _ in range(150):
            link.publish(TOPIC, b"1", qos=0)
        eventually(lambda: read_rates(limited).discarded[True])


def test_a_link_with_a_profile_sends_no_more_messages_than_its_broker_takes(
    limited: Limited,
) -> None:
    with open_links(limited.address, "a", "b") as (sender, receiver):
        limit_link(sender, AWS)
        subscribe(receiver)
        words = [str(i).encode() for i in range(150)]
        for word in words:
            sender.publish(TOPIC, word)
        assert [next_payload(receiver) for _ in words] == words
    assert not read_rates(limited).discarded


def test_bytes_beyond_the_rate_of_a_broker_are_late_but_not_lost(limited: Limited) -> None:
    assert AWS.throughput is not None
    payload, count = bytes(100_000), 12
    with open_links(limited.address, "a", "b") as (sender, receiver):
        limit_link(sender, AWS)
        subscribe(receiver)
        before = time.monotonic()
        for _ in range(count):
            sender.publish(TOPIC, payload)
        assert all(next_payload(receiver) == payload for _ in range(count))
    # the last one may pass once those before it have
    assert time.monotonic() - before >= (count - 1) * len(payload) / AWS.throughput
    assert not read_rates(limited).discarded


@pytest.mark.slow
@pytest.mark.processes
def test_the_tasks_of_a_round_that_starts_stay_within_the_rate(
    tmp_path: Path, start: Start, limited: Limited
) -> None:
    """More agents than the broker takes messages in a second get their tasks: without the profile,
    it discards the last ones. The agents join one after the other.
    """
    rates, names = read_rates(limited), [f"a{i:03}" for i in range(120)]
    what = f"--broker {limited.address} --name r --method fedavg --data digits --model mlp-small"
    coordinator = start(
        *(*COORDINATOR, "start", *what.split(), "--min-agents", str(len(names)), "--rounds", "1"),
        *("--set", "broker.profile=aws", "--set", "http.listen=127.0.0.1:0"),
    )
    host, port = limited.address.split(":")
    with closing(RawFleet("r", names, (host, int(port)), Raw())) as fleet:
        began = time.monotonic()
        for i, one in enumerate(fleet.sockets.values()):
            one.due = began + 5 + i / 20
        while any(agent.task is None for agent in fleet.agents):
            fleet.turn(0.05)
            assert coordinator.poll() is None
            assert time.monotonic() - began < PATIENCE, (tmp_path / "0.err").read_text()
        assert not rates.discarded[True]
        assert AWS.messages is not None
        assert rates.most <= AWS.messages


def subscribe(link: MqttLink) -> None:
    """Subscribe, and wait until the broker has processed it."""
    link.subscribe(TOPIC)
    link.publish(TOPIC, b"0")
    wait_for_delivery(link, TOPIC)


def next_payload(link: MqttLink) -> bytes:
    delivery = link.receive(PATIENCE)
    assert delivery is not None
    return delivery.payload
