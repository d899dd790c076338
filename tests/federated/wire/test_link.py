"""Links over real brokers: delivery."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from coordinator.broker.local_broker import Broker
from federated.errors import LinkError
from federated.wire import envelope, messages, topics
from federated.wire.chunks import Receiver, Sender, split
from federated.wire.link import Delivery
from federated.wire.links.mqtt import MqttLink
from federated.wire.retained_blobs import Download, RetainedBlob, publish
from tests.support.links import listen, open_links, wait_for_delivery

pytestmark = pytest.mark.broker
V311 = 4


def test_messages_and_retained_messages_arrive(broker: Broker) -> None:
    with open_links(broker.address, "a", "b") as (a, b):
        listen(b, "x/+")
        a.publish("x/1", b"one")
        assert wait_for_delivery(b, "x/1") == Delivery("x/1", b"one", False)
        a.publish("y", bytearray(b"kept"), retain=True)
        a.publish("x/2", memoryview(b"two"), qos=0)
        wait_for_delivery(b, "x/2")
        b.subscribe("y")
        assert wait_for_delivery(b, "y") == Delivery("y", b"kept", True)
        b.unsubscribe("x/+")
        listen(b)
        a.publish("x/3", b"")
        a.publish("y", b"")
        while (delivery := b.receive(0.5)) is not None:
            assert delivery.topic in ("y", "sync/b")
        assert a.sent_bytes == len("x/1one") + len("ykept") + len("x/2two") + len("x/3") + len("y")
        assert b.received_bytes >= len("x/1one") + len("x/2two") + len("ykept")


def test_messages_of_blocked_senders_are_dropped(broker: Broker) -> None:
    with open_links(broker.address, "a", "b") as (a, b):
        listen(b, "fl/v1/r/agent/+/say")
        b.block(frozenset({"flood"}))
        for name in ("flood", "honest"):
            a.publish(topics.say("r", name), b"x")
        assert b.receive(60.0) == Delivery(topics.say("r", "honest"), b"x")
        b.block(frozenset())
        a.publish(topics.say("r", "flood"), b"y")
        assert b.receive(60.0) == Delivery(topics.say("r", "flood"), b"y")


def test_the_newest_protocol_of_the_broker_is_used(broker: Broker) -> None:
    with open_links(broker.address, "a") as (link,):
        assert link.protocol == (5 if broker.kind == "mosquitto" else V311)


def test_a_will_is_published_after_kill_9(broker: Broker) -> None:
    code = (
        "import sys, time; from federated.wire.links.mqtt import MqttLink\n"
        "link = MqttLink(sys.argv[1], 'victim', ('will/victim', b'gone')); print('up', "
        "flush=True); time.sleep(60)"
    )
    with open_links(broker.address, "watcher") as (watcher,):
        listen(watcher, "will/+")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        victim = subprocess.Popen(
            [sys.executable, "-c", code, broker.address], stdout=subprocess.PIPE, env=environment
        )
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"up\n"
        victim.kill()
        victim.wait()
        victim.stdout.close()
        assert wait_for_delivery(watcher, "will/victim").payload == b"gone"
        watcher.unsubscribe("will/+")
        watcher.subscribe("will/victim")
        assert wait_for_delivery(watcher, "will/victim").retained


def test_a_will_is_not_published_after_close(broker: Broker) -> None:
    with open_links(broker.address, "watcher") as (watcher,):
        listen(watcher, "will", "bye")
        link = MqttLink(broker.address, "a", ("will", b"gone"))
        link.publish("bye", b"1")
        link.close()
        link.close()
        assert wait_for_delivery(watcher, "bye").payload == b"1"
        assert watcher.receive(0.5) is None
        with pytest.raises(LinkError, match="closed"):
            link.publish("x", b"")


@pytest.mark.parametrize("version", [None, V311])
def test_forty_megabytes_go_through_a_broker_of_small_packets(
    broker: Broker, version: int | None
) -> None:
    """The transfer of an update: offered, granted, and sent in chunks until the receiver's bitmap
    is full.
    """
    data = random.Random(0).randbytes(40_000_000)
    up, cmd = topics.upload("r", "a", "t"), topics.command("r", "a")
    with open_links(broker.address, "a", "c", version=version) as (agent, coordinator):
        listen(agent, cmd)
        listen(coordinator, topics.coordinator_patterns("r")[-1])
        manifest = split(data, agent.max_chunk, "t")
        sender, receiver = Sender(manifest, data), Receiver(manifest, limit=len(data))
        coordinator.publish(cmd, envelope.encode(messages.Grant("t", receiver.acknowledge(), True)))
        until = time.monotonic() + 120
        while not receiver.complete and time.monotonic() < until:
            while (delivery := agent.receive(0)) is not None:
                grant = envelope.decode(delivery.payload)
                assert isinstance(grant, messages.Grant)
                sender.take_grant(grant.have, grant.open, time.monotonic())
            for chunk in sender.next_chunks():
                agent.publish(topics.chunk(up, chunk.index), envelope.encode(chunk))
            while (delivery := coordinator.receive(0.02)) is not None:
                piece = envelope.decode(delivery.payload)
                assert isinstance(piece, messages.Chunk)
                receiver.take(piece, time.monotonic())
                if receiver.is_grant_due(time.monotonic()):
                    coordinator.publish(
                        cmd, envelope.encode(messages.Grant("t", receiver.acknowledge(), True))
                    )
        assert hashlib.sha256(receiver.verify()).digest() == hashlib.sha256(data).digest()


def test_deliveries_that_were_not_subscribed_to_are_ignored(broker: Broker) -> None:
    """The broker resumes a session of this name with its subscriptions. (amqtt 0.12 delivers for
    those of all clients.)
    """
    host, port = broker.address.split(":")
    earlier = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        client_id="a",
        protocol=MQTTProtocolVersion.MQTTv311,
        clean_session=False,
    )
    granted = threading.Event()
    earlier.on_connect = lambda client, *_: client.subscribe("theirs/+", qos=1)
    earlier.on_subscribe = lambda *_: granted.set()
    earlier.connect(host, int(port))
    earlier.loop_start()
    assert granted.wait(60)
    earlier.disconnect()
    earlier.loop_stop()
    with (
        open_links(broker.address, "a", version=V311) as (a,),
        open_links(broker.address, "b") as (b,),
    ):
        listen(a, "mine/+")
        b.publish("theirs/1", b"x")
        b.publish("mine/1", b"y")
        came = [
            delivery.topic
            for delivery in iter(lambda: a.receive(0.5), None)
            if not delivery.topic.startswith("sync/")
        ]
        assert came == ["mine/1"]
        assert a.received_bytes > len("theirs/1x") + len("mine/1y"), "the broker did deliver it"


def test_a_repeated_subscription_delivers_retained_messages_again(broker: Broker) -> None:
    """MQTT 3.1.1, section 3.8.4; rumqttd does so only for a subscription that is new."""
    with open_links(broker.address, "a") as (a,):
        a.publish("x", b"kept", retain=True)
        for _ in range(2):
            a.subscribe("x")
            assert wait_for_delivery(a, "x").retained


def test_a_download_of_many_chunks_needs_no_repeated_requests(
    broker: Broker, tmp_path: Path
) -> None:
    """rumqttd silently delivers at most 100 retained messages for one subscription."""
    data = random.Random(0).randbytes(250 * 1024)
    base = topics.model("r", "0", "w1")
    manifest = split(data, 1024, "t")
    with open_links(broker.address, "a", "c") as (agent, coordinator):
        publish(coordinator, base, manifest, memoryview(data))
        assert coordinator.flush(10)
        blob = RetainedBlob(base, manifest.sha256, len(data))
        download = Download(agent, blob, tmp_path / "w1", 0.0, sync=False)
        until, done = time.monotonic() + 30, False
        while not done and time.monotonic() < until:  # and never `tick`, which asks again
            delivery = agent.receive(0.1)
            if delivery is not None and delivery.topic.startswith(base):
                message = envelope.decode(delivery.payload)
                assert isinstance(message, messages.Manifest | messages.Chunk)
                done = download.take(message, 0.0)
    assert (tmp_path / "w1").read_bytes() == data
