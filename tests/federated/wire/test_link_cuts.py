"""Links over real brokers: recovery from interruptions."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from coordinator.broker.local_broker import Broker
from federated.errors import LinkError
from federated.wire import topics
from federated.wire.link import LINK_DOWN, LINK_UP
from federated.wire.links.disconnection_diagnosis import MAX_UNACKNOWLEDGED, SHORTS
from tests.support.brokers import read_port
from tests.support.links import listen, open_links, wait_for_delivery
from tests.support.proxy import Proxy

pytestmark = pytest.mark.broker


def test_a_cut_link_reconnects_and_waiting_messages_arrive(broker: Broker) -> None:
    proxy = Proxy(read_port(broker))
    try:
        with (
            open_links(f"127.0.0.1:{proxy.port}", "a", will=("will", b"gone")) as (a,),
            open_links(broker.address, "b") as (b,),
        ):
            listen(a, "to-a")
            listen(b, "to-b", "will")
            a.publish("to-b", b"before")
            wait_for_delivery(b, "to-b")
            proxy.cut()
            wait_for_delivery(a, LINK_DOWN)
            wait_for_delivery(b, "will")  # the broker knows it, too, and from now on queues
            a.publish("to-b", b"during")
            b.publish("to-a", b"during")
            proxy.mend()
            assert wait_for_delivery(a, LINK_UP).payload == b"resumed"
            assert wait_for_delivery(a, "to-a").payload == b"during"
            # `before` comes again where the cut took its acknowledgement away
            while wait_for_delivery(b, "to-b").payload != b"during":
                pass
    finally:
        proxy.close()


def test_subscriptions_survive_a_broker_restart(broker: Broker, tmp_path: Path) -> None:
    """Neither broker keeps the sessions (mosquitto 2.0 drops those of MQTT 5 when it ends). The
    links subscribe again and send the messages that waited.
    """
    with open_links(broker.address, "a", "b") as (a, b):
        listen(a, "x")
        listen(b, "y")
        b.publish("kept", b"1", retain=True)
        broker.stop()
        wait_for_delivery(a, LINK_DOWN)
        wait_for_delivery(b, LINK_DOWN)
        b.publish("y", b"during")
        with brokers.start(
            port=read_port(broker), kind=broker.kind, directory=tmp_path, max_packet=300_000
        ):
            wait_for_delivery(a, LINK_UP, 20)
            listen(a)
            assert wait_for_delivery(b, "y", 20).payload == b"during"
            b.publish("x", b"after")
            assert wait_for_delivery(a, "x").payload == b"after"
            if broker.kind == "mosquitto":  # which keeps its messages on disk
                a.subscribe("kept")
                assert wait_for_delivery(a, "kept").retained
            a.close()
            b.close()


def test_a_broker_behind_a_port_that_accepts_and_closes_is_waited_for(mosquitto: Broker) -> None:
    """A container's port behaves so: it accepts and closes every connection. Such failures are no
    evidence of too large packets or of another client with the name.
    """
    proxy = Proxy(read_port(mosquitto))
    try:
        with (
            open_links(f"127.0.0.1:{proxy.port}", "a") as (a,),
            open_links(mosquitto.address, "b") as (b,),
        ):
            listen(b, "x")
            a._client.reconnect_delay_set(0.05, 0.05)  # type: ignore[arg-type]
            proxy.cut()
            wait_for_delivery(a, LINK_DOWN)
            a.publish("x", b"during")
            for _ in range(MAX_UNACKNOWLEDGED + 1):
                wait_for_delivery(a, LINK_DOWN)
            proxy.mend()
            wait_for_delivery(a, LINK_UP)
            assert wait_for_delivery(b, "x").payload == b"during"
    finally:
        proxy.close()


@pytest.mark.parametrize(
    ("will", "ends"), [(topics.status("r", "a"), True), (topics.run("r"), False)]
)
def test_short_connections_end_the_link_of_an_agent_but_not_of_a_coordinator(
    mosquitto: Broker, will: str, ends: bool
) -> None:
    """Two agents of one name disconnect each other without end. Two coordinators compare epochs,
    and a run must survive a broker that closes connections for another reason.
    """
    proxy = Proxy(read_port(mosquitto))
    try:
        with open_links(f"127.0.0.1:{proxy.port}", "a", will=(will, b"")) as (a,):
            a._client.reconnect_delay_set(0.05, 0.05)  # type: ignore[arg-type]
            for _ in range(SHORTS - 1):
                proxy.cut()
                wait_for_delivery(a, LINK_DOWN)
                proxy.mend()
                wait_for_delivery(a, LINK_UP)
            proxy.cut()
            wait_for_delivery(a, LINK_DOWN)
            proxy.mend()
            if ends:
                with pytest.raises(LinkError, match="keeps closing the connection"):
                    wait_for_delivery(a, LINK_UP)
            else:
                wait_for_delivery(a, LINK_UP)
                listen(a, "x")
    finally:
        proxy.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_network_thread_that_died_is_replaced(broker: Broker) -> None:
    with open_links(broker.address, "a", "b") as (a, b):
        listen(a, "x")
        thread = a._client._thread
        assert thread is not None
        a._client.on_message = lambda *_: 1 / 0
        b.publish("x", b"deadly")
        thread.join(60)
        assert not thread.is_alive()
        a._client.on_message = lambda c, _, message: a._on_message(message)
        a.publish("y", b"")  # notices
        wait_for_delivery(a, LINK_UP)
        b.publish("x", b"harmless")
        until = time.monotonic() + 60
        while wait_for_delivery(a, "x").payload != b"harmless":
            assert time.monotonic() < until
