"""The link over real brokers: what it carries, what it survives, and what it says when it cannot."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator import broker as brokers
from coordinator.broker import Broker
from federated.errors import ConfigError, LinkError
from federated.wire import link as links
from federated.wire import messages, topics
from federated.wire.chunks import Receiver, Sender, split
from federated.wire.inbox import LINK_DOWN, LINK_UP, Delivery
from federated.wire.link import STRIKES, MqttLink
from federated.wire.mqtt import QUEUED

pytestmark = pytest.mark.broker

V311 = 4
needs_mosquitto = pytest.mark.skipif(brokers.find_mosquitto() is None, reason="mosquitto is not installed")
BOTH = [pytest.param("mosquitto", marks=needs_mosquitto), "amqtt"]


@pytest.fixture(params=BOTH)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    if request.param == "amqtt":
        pytest.importorskip("amqtt")
    with brokers.start(port=0, kind=request.param, directory=tmp_path, max_packet=300_000) as started:
        yield started


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Broker]:
    if brokers.find_mosquitto() is None:
        pytest.skip("mosquitto is not installed")
    with brokers.start(port=0, kind="mosquitto", directory=tmp_path, max_packet=100_000) as started:
        yield started


@contextlib.contextmanager
def linked(address: str, *names: str, **options: object) -> Iterator[list[MqttLink]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(MqttLink(address, name, **options))) for name in names]  # type: ignore[arg-type]


def hear(link: MqttLink, topic: str, timeout: float = 10.0) -> Delivery:
    """The next delivery on a topic; what comes before it is passed over."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        delivery = link.receive(0.1)
        if delivery is not None and delivery.topic == topic:
            return delivery
    raise AssertionError(f"nothing came on {topic} within {timeout} s")


def listen(link: MqttLink, *patterns: str) -> None:
    """Subscribes, and waits until the broker knows: others may publish at once."""
    for pattern in (*patterns, f"sync/{link.client_id}"):
        link.subscribe(pattern)
    link.publish(f"sync/{link.client_id}", b"1")
    hear(link, f"sync/{link.client_id}")


class Proxy:
    """A way to a broker that can be cut: connections are closed, and none is taken, until it is mended."""

    def __init__(self, port: int) -> None:
        self._target, self._open = port, True
        self._ends: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        self._open = False
        for end in self._ends:
            shut(end)

    def mend(self) -> None:
        self._open = True

    def close(self) -> None:
        self.cut()
        shut(self._server)
        for end in (self._server, *self._ends):
            end.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                if not self._open:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._target))
                self._ends += [near, far]
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    @staticmethod
    def _pump(a: socket.socket, b: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := a.recv(1 << 16):
                b.sendall(data)
        shut(a)
        shut(b)


def shut(end: socket.socket) -> None:
    """Ends a connection for both sides. Closing would not: the kernel keeps it while another thread reads from it."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def port_of(broker: Broker) -> int:
    return int(broker.address.rsplit(":", 1)[1])


# ---- what it carries -----------------------------------------------------------------------------------------------


def test_messages_and_retained_messages_arrive(broker: Broker) -> None:
    with linked(broker.address, "a", "b") as (a, b):
        listen(b, "x/+")
        a.publish("x/1", b"one")
        assert hear(b, "x/1") == Delivery("x/1", b"one", False)
        a.publish("y", bytearray(b"kept"), retain=True)
        a.publish("x/2", memoryview(b"two"), qos=0)
        hear(b, "x/2")
        b.subscribe("y")
        assert hear(b, "y") == Delivery("y", b"kept", True)
        b.unsubscribe("x/+")
        listen(b)
        a.publish("x/3", b"")
        a.publish("y", b"")
        while (delivery := b.receive(0.5)) is not None:
            assert delivery.topic in ("y", "sync/b")
        assert a.sent_bytes == len("x/1one") + len("ykept") + len("x/2two") + len("x/3") + len("y")
        assert b.received_bytes >= len("x/1one") + len("x/2two") + len("ykept")


def test_the_best_protocol_of_the_broker_is_spoken(broker: Broker) -> None:
    with linked(broker.address, "a") as (link,):
        assert link.protocol == (5 if broker.kind == "mosquitto" else V311)


def test_a_will_is_published_after_kill_9(broker: Broker) -> None:
    code = (
        "import sys, time; from federated.wire.link import MqttLink\n"
        "link = MqttLink(sys.argv[1], 'victim', ('will/victim', b'gone')); print('up', flush=True); time.sleep(60)"
    )
    with linked(broker.address, "watcher") as (watcher,):
        listen(watcher, "will/+")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        victim = subprocess.Popen([sys.executable, "-c", code, broker.address], stdout=subprocess.PIPE, env=environment)
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"up\n"
        victim.kill()
        victim.wait()
        victim.stdout.close()
        assert hear(watcher, "will/victim").payload == b"gone"
        watcher.unsubscribe("will/+")
        watcher.subscribe("will/victim")
        assert hear(watcher, "will/victim").retained


def test_a_will_is_not_published_after_a_farewell(broker: Broker) -> None:
    with linked(broker.address, "watcher") as (watcher,):
        listen(watcher, "will", "bye")
        link = MqttLink(broker.address, "a", ("will", b"gone"))
        link.publish("bye", b"1")
        link.close()
        link.close()
        assert hear(watcher, "bye").payload == b"1"
        assert watcher.receive(0.5) is None
        with pytest.raises(LinkError, match="closed"):
            link.publish("x", b"")


@pytest.mark.parametrize("version", [None, V311])
def test_forty_megabytes_go_through_a_broker_of_small_packets(broker: Broker, version: int | None) -> None:
    """As a device sends an update: offered, granted, in chunks that the broker takes, until the receiver's bitmap is full."""
    data = random.Random(0).randbytes(40_000_000)
    up, cmd = topics.upload("r", "a", "t"), topics.command("r", "a")
    with linked(broker.address, "a", "c", version=version) as (agent, coordinator):
        listen(agent, cmd)
        listen(coordinator, topics.coordinator_patterns("r")[-1])
        manifest = split(data, agent.max_chunk, "t")
        sender, receiver = Sender(manifest, data), Receiver(manifest, limit=len(data))
        coordinator.publish(cmd, messages.encode(messages.Grant("t", receiver.have, True)))
        until = time.monotonic() + 120
        while not receiver.complete and time.monotonic() < until:
            while (delivery := agent.receive(0)) is not None:
                grant = messages.decode(delivery.payload)
                assert isinstance(grant, messages.Grant)
                sender.granted(grant.have, grant.open, time.monotonic())
            for chunk in sender.due(time.monotonic()):
                agent.publish(topics.chunk(up, chunk.index), messages.encode(chunk))
            while (delivery := coordinator.receive(0.02)) is not None:
                piece = messages.decode(delivery.payload)
                assert isinstance(piece, messages.Chunk)
                receiver.take(piece, time.monotonic())
                if receiver.wants_grant(time.monotonic()):
                    coordinator.publish(cmd, messages.encode(messages.Grant("t", receiver.have, True)))
        assert hashlib.sha256(receiver.finish()).digest() == hashlib.sha256(data).digest()


# ---- what it survives ----------------------------------------------------------------------------------------------


def test_a_cut_link_mends_and_what_waited_on_both_sides_arrives(broker: Broker) -> None:
    proxy = Proxy(port_of(broker))
    try:
        with linked(f"127.0.0.1:{proxy.port}", "a", will=("will", b"gone")) as (a,), linked(broker.address, "b") as (b,):
            listen(a, "to-a")
            listen(b, "to-b", "will")
            a.publish("to-b", b"before")
            hear(b, "to-b")
            proxy.cut()
            hear(a, LINK_DOWN)
            hear(b, "will")  # the broker knows it, too, and from now on queues
            a.publish("to-b", b"during")
            b.publish("to-a", b"during")
            proxy.mend()
            assert hear(a, LINK_UP).payload == b"resumed"
            assert hear(a, "to-a").payload == b"during"
            while hear(b, "to-b").payload != b"during":  # `before` comes again where the cut took its acknowledgement away
                pass
    finally:
        proxy.close()


def test_subscriptions_outlive_a_restart_of_the_broker(broker: Broker, tmp_path: Path) -> None:
    """Neither broker keeps the sessions (mosquitto 2.0 drops those of MQTT 5 when it ends): the links make them anew, and send what waited."""
    with linked(broker.address, "a", "b") as (a, b):
        listen(a, "x")
        listen(b, "y")
        b.publish("kept", b"1", retain=True)
        broker.stop()
        hear(a, LINK_DOWN)
        hear(b, LINK_DOWN)
        b.publish("y", b"during")
        with brokers.start(port=port_of(broker), kind=broker.kind, directory=tmp_path, max_packet=300_000):
            hear(a, LINK_UP, 20)
            listen(a)
            assert hear(b, "y", 20).payload == b"during"
            b.publish("x", b"after")
            assert hear(a, "x").payload == b"after"
            if broker.kind == "mosquitto":  # which keeps its messages on disk
                a.subscribe("kept")
                assert hear(a, "kept").retained
            a.close()
            b.close()


def test_a_broker_that_is_away_behind_a_door_that_opens_is_waited_for(mosquitto: Broker) -> None:
    """As a container's port does: every attempt is taken and closed. That says nothing of packets, nor of others of the name."""
    proxy = Proxy(port_of(mosquitto))
    try:
        with linked(f"127.0.0.1:{proxy.port}", "a") as (a,), linked(mosquitto.address, "b") as (b,):
            listen(b, "x")
            a._client.reconnect_delay_set(0.05, 0.05)  # type: ignore[arg-type]
            proxy.cut()
            hear(a, LINK_DOWN)
            a.publish("x", b"during")
            for _ in range(STRIKES + 1):
                hear(a, LINK_DOWN)
            proxy.mend()
            hear(a, LINK_UP)
            assert hear(b, "x").payload == b"during"
    finally:
        proxy.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_network_thread_that_died_is_replaced(broker: Broker) -> None:
    with linked(broker.address, "a", "b") as (a, b):
        listen(a, "x")
        thread = a._client._thread
        assert thread is not None
        a._client.on_message = lambda *_: 1 / 0
        b.publish("x", b"deadly")
        thread.join(10)
        assert not thread.is_alive()
        a._client.on_message = lambda c, _, message: a._on_message(message)
        a.publish("y", b"")  # notices
        hear(a, LINK_UP)
        b.publish("x", b"harmless")
        until = time.monotonic() + 10
        while hear(a, "x").payload != b"harmless":
            assert time.monotonic() < until


# ---- limits --------------------------------------------------------------------------------------------------------


def test_the_limit_that_a_broker_states_is_kept(mosquitto: Broker) -> None:
    with linked(mosquitto.address, "a") as (link,):
        assert link.max_payload == 100_000 - 4096
        assert link.max_chunk == 100_000 - 2 * 4096
        with pytest.raises(LinkError, match=r"payload of 100000 bytes is over the broker's limit of 95904: lower wire.chunk"):
            link.publish("x", bytes(100_000))
        link.subscribe("x")
        link.publish("x", bytes(link.max_payload))
        assert len(hear(link, "x").payload) == link.max_payload


def test_probing_finds_a_limit_that_a_broker_does_not_state(mosquitto: Broker) -> None:
    """MQTT 3.1.1 has no word for it: a broker just hangs up."""
    with linked(mosquitto.address, "a", version=V311) as (link,):
        assert link.max_chunk == 256 << 10
        passed, rate = link.probe("p")
        assert passed == 96 << 10
        assert (link.max_payload, link.max_chunk) == (96 << 10, (96 << 10) - 4096)
        assert 1e4 < rate < 1e11


def test_probing_over_a_broker_that_takes_all_leaves_the_link_as_it_is(tmp_path: Path) -> None:
    with brokers.start(port=0, directory=tmp_path) as broker, linked(broker.address, "a") as (link,):
        before = link.max_payload, link.max_chunk
        assert link.probe("p")[0] == (256 << 10) + 4096
        assert (link.max_payload, link.max_chunk) == before
        assert link.receive(0.2) is None


def test_a_packet_that_a_broker_hangs_up_over_ends_the_link_with_its_size(mosquitto: Broker) -> None:
    link = MqttLink(mosquitto.address, "a", version=V311)
    try:
        link.publish("big", bytes(200_000))
        with pytest.raises(LinkError, match=r"hung up 3 times over a packet of 200000 bytes \(big\).*lower wire.chunk"):
            hear(link, "never", 30)
    finally:
        link.close()


def test_publishing_waits_for_a_stuck_broker_and_then_says_so(mosquitto: Broker) -> None:
    link = MqttLink(mosquitto.address, "a", patience=0.5)
    group = mosquitto._process.pid
    os.killpg(group, signal.SIGSTOP)
    try:
        for _ in range(QUEUED):
            link.publish("x", bytes(50_000))
        start = time.monotonic()
        with pytest.raises(LinkError, match="acknowledged nothing"):
            link.publish("x", bytes(50_000))
        assert 0.5 <= time.monotonic() - start < 5
    finally:
        os.killpg(group, signal.SIGCONT)
        link.close()


def test_a_second_client_of_the_name_ends_the_first_with_a_reason(mosquitto: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SHORTS", 1)
    first = MqttLink(mosquitto.address, "a")
    second = MqttLink(mosquitto.address, "a")
    try:
        with pytest.raises(LinkError, match="another client connected as 'a'"):
            hear(first, "never", 10)
    finally:
        first.close()
        second.close()


def test_of_two_clients_of_one_name_the_one_that_ends_lets_the_other_be(mosquitto: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the broker gives no reason they throw each other out in turn; once one has ended, nobody throws the other out any more."""
    monkeypatch.setattr(links, "SHORTS", 2)
    pair = [MqttLink(mosquitto.address, "a") for _ in range(2)]
    try:
        ended: list[MqttLink] = []
        until = time.monotonic() + 30
        while not ended:
            assert time.monotonic() < until
            for link in pair:
                with contextlib.suppress(AssertionError):
                    try:
                        hear(link, "never", 0.1)
                    except LinkError:
                        ended.append(link)
        (other,) = set(pair) - set(ended)
        for nothing_of in ("what it heard before", LINK_DOWN):
            with pytest.raises(AssertionError, match="nothing came"):
                hear(other, nothing_of, 3.0 if nothing_of == LINK_DOWN else 0.2)
    finally:
        for link in pair:
            link.close()


# ---- what it says --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def impostor(answer: bytes | None) -> Iterator[int]:
    """Something that listens and is no broker: silent for ever (None), or hanging up after its answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    held.append(connection)
                    if answer is not None:
                        connection.recv(1000)
                        connection.sendall(answer)
                        connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in held:
            connection.close()


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_is_no_broker_is_called_so_in_time(answer: bytes | None) -> None:
    with impostor(answer) as port:
        start = time.monotonic()
        with pytest.raises(LinkError, match=rf"127.0.0.1:{port}: (something listens there, but does not answer|it hung up)"):
            MqttLink(f"127.0.0.1:{port}", "a", timeout=3.0)
        assert time.monotonic() - start < 8


def test_a_port_where_nothing_listens_is_called_so_at_once() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        start = time.monotonic()
        with pytest.raises(LinkError, match="refused, nothing listens there: start a broker"):
            MqttLink(f"127.0.0.1:{reserved.getsockname()[1]}", "a")
        assert time.monotonic() - start < 2


def test_a_name_that_does_not_resolve_is_called_so() -> None:
    with pytest.raises(LinkError, match=r"the name 'nowhere.invalid' does not resolve"):
        MqttLink("nowhere.invalid", "a", timeout=5.0)


@pytest.mark.parametrize("kind", BOTH)
def test_wrong_and_missing_passwords_are_refused_with_a_hint(kind: str, tmp_path: Path) -> None:
    (tmp_path / "users").write_text("me:right\n")
    own = topics.probe("r", "me")  # an agent's name is its user
    with brokers.start(port=0, kind=kind, directory=tmp_path / "b", passwords=tmp_path / "users") as broker:
        for login in ("", "me:wrong@", "you:right@"):
            with pytest.raises(LinkError, match=r"refuses this client: .*mqtt://user:password@host") as caught:
                MqttLink(f"mqtt://{login}{broker.address}", "a")
            assert "wrong" not in str(caught.value)
        with linked(f"mqtt://me:right@{broker.address}", "a") as (link,):
            link.subscribe(own)
            link.publish(own, b"1")
            assert hear(link, own).payload == b"1"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    names = ["-subj", "/CN=broker", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, "-keyout", "key.pem", "-out", "ca.pem"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    return tmp_path / "ca.pem"


@needs_mosquitto
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the library leaves a refused TLS socket to the collector
def test_tls_is_checked_against_the_authority_that_is_given(certificate: Path) -> None:
    folder = certificate.parent
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", f"certfile {certificate}", f"keyfile {folder / 'key.pem'}"]
    (folder / "m.conf").write_text("\n".join([*lines, *(["user root"] if os.geteuid() == 0 else [])]) + "\n")
    program = brokers.find_mosquitto()
    assert program is not None
    process = subprocess.Popen([program, "-c", str(folder / "m.conf")], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        with linked(f"mqtts://127.0.0.1:{port}?ca={certificate}", "a") as (link,):
            link.subscribe("x")
            link.publish("x", bytes(300_000))
            assert len(hear(link, "x").payload) == 300_000
        with pytest.raises(LinkError, match=r"certificate is not trusted.*ca=FILE"):
            MqttLink(f"mqtts://127.0.0.1:{port}", "a")
        with pytest.raises(LinkError, match="no link to the broker"):
            MqttLink(f"mqtt://127.0.0.1:{port}", "a", timeout=3.0)
        with pytest.raises(ConfigError, match="does not exist"):
            MqttLink(f"mqtts://127.0.0.1:{port}?ca={folder / 'none.pem'}", "a")
    finally:
        process.terminate()
        process.wait()
