"""Phones enrol with a token that works once, and reach the broker with an agent's rights only."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("websockets")

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from coordinator.access.broker_setup import open_broker_access
from coordinator.access.certificate_authority import Authority
from coordinator.access.configured_authority import open_authority
from coordinator.access.run_rights import Subject, set_right
from coordinator.broker import local_broker as brokers
from coordinator.phones import mqtt_pipe, phone_server
from coordinator.phones.mqtt_packets import Connect as ConnectFields
from coordinator.phones.mqtt_packets import format_connect, pack_length, pack_text
from coordinator.phones.mqtt_pipe import PER_PHONE, Pipes, Upstream
from coordinator.phones.phone_enrolment import NONCE, PhoneEnrolment
from coordinator.phones.phone_server import HEADERS, PhoneServer, PhoneSite
from coordinator.settings.service_tables import Broker
from federated.errors import Refused, UsageError
from federated.runtime.connection_limits import listen
from federated.runtime.logs import redact
from federated.wire import topics
from federated.wire.links.catalogue import open_link
from federated.wire.mqtt_address import parse_mqtt_address
from tests.support.brokers import BOTH, needs_mosquitto
from tests.support.waiting import eventually

pytestmark = [pytest.mark.broker]
LIMIT = 1 << 16  # bytes of the largest packet in these tests
ACCEPTED, NOT_AUTHORISED = b"\x20\x02\x00\x00", b"\x20\x02\x00\x05"


@dataclass
class Door:
    """A running phone server.

    authority: that enrols the phones.
    broker: address of the broker, with the coordinator's credentials.
    port: of the server.
    joined: time of the last attempt to join.
    """

    authority: Authority
    broker: str
    enrolment: PhoneEnrolment
    pipes: Pipes
    port: int
    joined: float = field(default=0.0)

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, 60)) as link:
            link.request(method, path, body, dict(headers))
            response = link.getresponse()
            data = response.read()
            kind = response.headers["content-type"] or ""
            return response.status, json.loads(data) if "json" in kind else data, response.headers

    def invite(self, name: str, valid: float = 60) -> str:
        return str(self.authority.invite(name, "localhost", 8884, valid))

    def join(self, token: str, nonce: str = "") -> tuple[int, Any]:
        """Send a request to join; without a nonce, as a new phone."""
        time.sleep(max(0.0, self.joined + 1.0 - time.monotonic()))  # the server's limit
        self.joined = time.monotonic()
        return self.call("POST", "/phone/join", make_request(token, nonce))[:2]

    def enrol(self, name: str) -> str:
        """Enrol a phone, and return its password."""
        status, found = self.join(self.invite(name))
        assert (status, found["name"], found["run"]) == (200, name, "r")
        return str(found["password"])

    def url(self, name: str, password: str) -> str:
        return f"ws://{name}:{password}@127.0.0.1:{self.port}/mqtt"

    @contextlib.contextmanager
    def open(self, name: str, password: str) -> Iterator[ClientConnection]:
        """Yield a WebSocket on which a phone has sent CONNECT."""
        with connect(f"ws://127.0.0.1:{self.port}/mqtt", subprotocols=["mqtt"]) as link:  # type: ignore[list-item]
            link.send(format_connect(ConnectFields(2, 60, b"", "", "", ""), "x", name, password))
            yield link


def make_request(token: str, nonce: str = "") -> bytes:
    return json.dumps({"token": token, "nonce": nonce or secrets.token_hex(NONCE)}).encode()


@contextlib.contextmanager
def opened(folder: Path, authority: Authority, broker: str, *, tls: bool) -> Iterator[Door]:
    files = folder / "static"
    (files / "assets").mkdir(parents=True)
    (files / "index.html").write_text("<!doctype html>a phone")
    (files / "assets" / "run-1a2b.wasm.br").write_bytes(b"brotli")
    (files / "assets" / "run-1a2b.wasm.gz").write_bytes(b"gzip")
    enrolment = PhoneEnrolment(authority, "r")
    pipes = Pipes(enrolment, Upstream(parse_mqtt_address(broker), tls, LIMIT))
    with contextlib.closing(
        PhoneServer(PhoneSite(files, "r"), enrolment, pipes, listen("127.0.0.1", 0))
    ) as server:
        yield Door(authority, broker, enrolment, pipes, server.port)


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    with contextlib.closing(open_authority(Broker(pki=str(tmp_path / "pki")))) as made:
        yield made


@pytest.fixture(params=BOTH)
def door(request: Any, tmp_path: Path, authority: Authority) -> Iterator[Door]:
    """A server in front of a broker without rights by topic."""
    with (
        brokers.start("127.0.0.1", 0, request.param, tmp_path / "broker") as broker,
        opened(tmp_path, authority, broker.url, tls=False) as made,
    ):
        yield made


@pytest.fixture
def alone(tmp_path: Path, authority: Authority) -> Iterator[Door]:
    """A server whose broker is gone."""
    with opened(tmp_path, authority, "mqtt://127.0.0.1:9", tls=False) as made:
        yield made


def read_end(link: ClientConnection) -> tuple[int, str]:
    """Return the close code and reason with which the server ends a WebSocket."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            link.recv(30)
    return link.close_code or 0, link.close_reason or ""


def test_messages_pass_both_ways_with_the_rights_of_an_agent(door: Door) -> None:
    """The coordinator's side connects to the broker directly; the phone through the pipe."""
    password = door.enrol("ann")
    with (
        contextlib.closing(open_link(door.broker, "coordinator-r")) as coordinator,
        contextlib.closing(open_link(door.url("ann", password), "r-ann")) as phone,
    ):
        coordinator.subscribe(topics.status("r", "ann"))
        phone.subscribe(topics.command("r", "ann"))
        large, small = os.urandom(LIMIT - 1000), os.urandom(1000)
        got = Counter[tuple[str, bytes]]()
        expected = (topics.status("r", "ann"), large), (topics.command("r", "ann"), small)

        def exchange() -> bool:
            phone.publish(*expected[0])
            coordinator.publish(*expected[1])
            for link in (coordinator, phone):
                found = link.receive(0.2)
                if found is not None and found.topic.startswith(topics.ROOT):
                    got[found.topic, found.payload] += 1
            return all(got[one] >= 20 for one in expected)

        eventually(exchange)
        assert set(got) == set(expected)


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"\x30" + pack_length(31) + pack_text("fl/v1/r/agent/bob/status") + b"hello", "publish"),
        (b"\x82" + pack_length(20) + b"\0\1" + pack_text("fl/v1/r/cmd/bob") + b"\1", "subscribe"),
        (b"\x82" + pack_length(6) + b"\0\1" + pack_text("#") + b"\1", "subscribe"),
        (b"\x10\x00", "type 1"),
    ],
)
def test_what_an_agent_may_not_do_ends_its_connection(
    door: Door, packet: bytes, reason: str
) -> None:
    password = door.enrol("ann")
    with contextlib.closing(open_link(door.broker, "coordinator-r")) as coordinator:
        coordinator.subscribe(topics.status("r", "bob"))
        with door.open("ann", password) as link:
            assert link.recv(30) == ACCEPTED
            link.send(packet)
            code, why = read_end(link)
            assert (code, reason in why) == (1008, True)
        delivery = coordinator.receive(0.5)
        assert delivery is None or delivery.topic != topics.status("r", "bob")


def test_a_lost_phone_leaves_its_will(door: Door) -> None:
    password, status = door.enrol("ann"), topics.status("r", "ann")
    will = pack_text(status) + pack_text("gone")
    with contextlib.closing(open_link(door.broker, "coordinator-r")) as coordinator:
        coordinator.subscribe(status)
        with connect(f"ws://127.0.0.1:{door.port}/mqtt", subprotocols=["mqtt"]) as link:  # type: ignore[list-item]
            asked = ConnectFields(0x06, 60, will, status, "", "")
            link.send(format_connect(asked, "x", "ann", password))
            assert link.recv(30) == ACCEPTED
            link.socket.shutdown(socket.SHUT_RDWR)
        eventually(
            lambda: (found := coordinator.receive(0.1)) is not None and found.payload == b"gone"
        )


def test_a_token_works_once_and_only_in_time(alone: Door) -> None:
    token = alone.invite("ann")
    assert alone.join(token)[0] == 200
    assert "already used" in check_refused(alone.join(token))
    expired = alone.invite("bob", -1)
    assert "expired" in check_refused(alone.join(expired))
    withdrawn = alone.invite("eve")
    alone.invite("eve")
    assert "unknown token" in check_refused(alone.join(withdrawn))


def test_a_lost_answer_is_repeated_to_the_same_phone_only(alone: Door) -> None:
    """Also if the first phone's password was used already."""
    token, nonce = alone.invite("ann"), secrets.token_hex(NONCE)
    first = alone.join(token, nonce)
    assert first[0] == 200
    assert alone.join(token, nonce) == first
    phone = alone.enrolment.admit("ann", first[1]["password"])
    assert "already used" in check_refused(alone.join(token))  # another browser
    assert "already used" in check_refused(alone.join(token, nonce[:-1] + flip(nonce)))
    other = alone.join(alone.invite("bob"), nonce)
    assert other[1]["password"] != first[1]["password"]
    assert alone.enrolment.admit("ann", first[1]["password"]) == phone


def flip(nonce: str) -> str:
    """Return another last digit."""
    return "0" if nonce[-1] != "0" else "1"


def test_an_answer_is_repeated_for_a_while_only(alone: Door) -> None:
    token, nonce = alone.invite("ann"), secrets.token_bytes(NONCE)
    first, now = alone.enrolment.enrol(token, nonce), datetime.now(UTC)
    assert alone.enrolment.enrol(token, nonce, now + timedelta(minutes=30)) == first
    with pytest.raises(Refused, match="already used"):
        alone.enrolment.enrol(token, nonce, now + timedelta(minutes=70))


def test_a_revoked_phone_gets_no_answer_again(alone: Door) -> None:
    token, nonce = alone.invite("ann"), secrets.token_hex(NONCE)
    assert alone.join(token, nonce)[0] == 200
    alone.authority.revoke("ann")
    assert "revoked" in check_refused(alone.join(token, nonce))


def test_another_authority_derives_another_password(tmp_path: Path) -> None:
    """So nobody computes a phone's password from its token and nonce alone."""
    with (
        contextlib.closing(Authority(tmp_path / "one")) as one,
        contextlib.closing(Authority(tmp_path / "other")) as other,
    ):
        assert one.derive(b"phone", 48) == one.derive(b"phone", 48)
        assert one.derive(b"phone", 48) != other.derive(b"phone", 48)
        assert one.derive(b"phone", 48) != one.derive(b"phones", 48)


def check_refused(found: tuple[int, Any]) -> str:
    assert found[0] == 403
    return str(found[1]["error"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{}", 400),
        (b"not json", 400),
        (b'{"token": "ann@h:1/1-aa-bb-cc"}', 400),
        (b'{"token": 7, "nonce": "' + b"0" * 64 + b'"}', 400),
        (b'{"token": "ann@h:1/1-aa-bb-cc", "nonce": "00"}', 400),
        (b'{"token": "ann@h:1/1-aa-bb-cc", "nonce": "' + b"0" * 64 + b'"}', 400),
        (b'{"token": "' + b"a" * 5000 + b'"}', 413),
    ],
)
def test_a_request_without_a_token_is_refused(alone: Door, body: bytes, status: int) -> None:
    found, answer, _ = alone.call("POST", "/phone/join", body)
    assert found == status
    assert answer["error"]


def test_tokens_of_strangers_do_not_fill_the_memory(alone: Door) -> None:
    with pytest.raises(UsageError, match="token"):
        alone.enrolment.enrol("a@b:1/1-zqxjzqxjzqxj-aaaa-bbbb", bytes(NONCE))
    assert "zqxjzqxjzqxj" in redact("a log line with zqxjzqxjzqxj")


@pytest.mark.parametrize("shard", ["0/100", "0/" + "9" * 5000, "x/y", "1/2/3"])
def test_only_a_few_parts_of_the_digits_may_be_asked_for(alone: Door, shard: str) -> None:
    status, body, _ = alone.call("GET", f"/phone/digits?agent=a&shard={shard}")
    assert status == 400
    assert "expected I/N" in body["error"]


def test_a_token_of_another_coordinator_is_refused(alone: Door, tmp_path: Path) -> None:
    with contextlib.closing(Authority(tmp_path / "other")) as other:
        token = str(other.invite("ann", "localhost", 8884, 60))
    assert "another coordinator" in check_refused(alone.join(token))


def test_attempts_to_join_are_limited(alone: Door) -> None:
    token = alone.invite("ann")
    asked = make_request(token)
    found = [alone.call("POST", "/phone/join", asked)[0] for _ in range(6)]
    assert found[0] == 200
    assert 429 in found


def test_phones_behind_one_address_do_not_use_up_its_connections(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address may have two connections at a time. Phones with a password count for themselves,
    and a flood of strangers at their address closes none of them.
    """
    monkeypatch.setattr(phone_server, "PER_ADDRESS", 2)
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(brokers.start("127.0.0.1", 0, "embedded", tmp_path / "broker"))
        door = stack.enter_context(opened(tmp_path, authority, broker.url, tls=False))
        links = [stack.enter_context(door.open(f"p{at}", door.enrol(f"p{at}"))) for at in range(4)]
        assert [link.recv(30) for link in links] == [ACCEPTED] * 4
        for _ in range(30):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", door.port), 30))
            with contextlib.suppress(OSError):
                stranger.sendall(b"GET /phone/ HTTP/1.1\r\n")
        for link in links:
            link.send(b"\xc0\x00")  # PINGREQ
            assert link.recv(30) == b"\xd0\x00"


def test_a_phone_has_a_few_connections_at_most(door: Door) -> None:
    password = door.enrol("ann")
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(door.open("ann", password)) for _ in range(PER_PHONE + 1)]
        assert links[-1].recv(30) == ACCEPTED
        assert read_end(links[0])[0] in {1006, 1013}


def test_pages_of_other_sites_are_refused(alone: Door) -> None:
    foreign = {"Origin": "http://evil.example"}
    asked = make_request(alone.invite("ann"))
    assert alone.call("POST", "/phone/join", asked, foreign)[0] == 403
    site = {"Sec-Fetch-Site": "cross-site"}
    assert alone.call("POST", "/phone/join", asked, site)[0] == 403
    with pytest.raises(InvalidStatus) as caught:
        connect(
            f"ws://127.0.0.1:{alone.port}/mqtt",
            subprotocols=["mqtt"],  # type: ignore[list-item]
            origin="http://evil.example",  # type: ignore[arg-type]
        )
    assert caught.value.response.status_code == 403


def test_a_websocket_without_mqtt_is_refused(alone: Door) -> None:
    with pytest.raises(InvalidStatus) as caught:
        connect(f"ws://127.0.0.1:{alone.port}/mqtt")
    assert caught.value.response.status_code == 400


@pytest.mark.parametrize(("name", "password"), [("ann", "wrong"), ("bob", ""), ("../pki", "x")])
def test_a_wrong_password_is_refused(alone: Door, name: str, password: str) -> None:
    alone.enrol("ann")
    with alone.open(name, password) as link:
        assert link.recv(30) == NOT_AUTHORISED
        assert read_end(link)[0] == 1008


def test_a_missing_broker_is_said(alone: Door) -> None:
    with alone.open("ann", alone.enrol("ann")) as link:
        assert link.recv(30) == b"\x20\x02\x00\x03"
        assert read_end(link)[0] == 1013


def test_text_oversized_and_other_versions_are_refused(
    alone: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_pipe, "CONNECT_TIMEOUT", 0.5)
    where = f"ws://127.0.0.1:{alone.port}/mqtt"
    newer = b"\x10\x11\x00\x04MQTT\x05\x02\x00\x3c\x00" + pack_text("abc") + b"\0"
    for message, code in (
        ("text", 1008),
        (b"\x30" + pack_length(LIMIT) + b"x", 1009),
        (bytes(LIMIT + 1), 1009),
        (newer, 1008),
        (b"\x10", 1008),  # and no more in time
    ):
        with connect(where, subprotocols=["mqtt"]) as link:  # type: ignore[list-item]
            link.send(message)
            assert read_end(link)[0] == code, message[:20]


def test_a_broker_that_ends_ends_the_pipe(tmp_path: Path, authority: Authority) -> None:
    with (
        brokers.start("127.0.0.1", 0, "embedded", tmp_path / "broker") as broker,
        opened(tmp_path, authority, broker.url, tls=False) as door,
        door.open("ann", door.enrol("ann")) as link,
    ):
        assert link.recv(30) == ACCEPTED
        broker.stop()
        assert read_end(link)[0] == 1013


def test_a_revoked_phone_is_disconnected_and_refused(door: Door) -> None:
    password = door.enrol("ann")
    with door.open("ann", password) as link:
        assert link.recv(30) == ACCEPTED
        assert door.authority.revoke("ann") == 1
        door.pipes.refresh()
        code, why = read_end(link)
        assert (code, "revoked" in why) == (1008, True)
    with door.open("ann", password) as link:
        assert link.recv(30) == NOT_AUTHORISED
    assert door.enrol("ann") != password  # a new token for the same name


def test_a_phone_without_the_right_to_the_run_is_disconnected_and_refused(door: Door) -> None:
    password, registry = door.enrol("eve"), door.authority.registry
    with door.open("eve", password) as link:
        assert link.recv(30) == ACCEPTED
        with registry.transaction():
            set_right(registry, Subject("agent", "eve"), "other", withdraw=False)
        door.pipes.refresh()
        code, why = read_end(link)
        assert (code, "no right to this run" in why) == (1008, True)
    with door.open("eve", password) as link:
        assert link.recv(30) == NOT_AUTHORISED
    with registry.transaction():
        set_right(registry, Subject("agent", "eve"), "r", withdraw=False)
    with door.open("eve", password) as link:
        assert link.recv(30) == ACCEPTED


@needs_mosquitto
def test_with_certificates_the_broker_sees_the_phone_itself(tmp_path: Path) -> None:
    """The broker applies its own rights, and disconnects a revoked phone by itself."""
    wanted = Broker(port=0, tls=True, enrol=0, pki=str(tmp_path / "pki"))
    with (
        open_broker_access(wanted, tmp_path, lambda text: None) as access,
        contextlib.closing(open_authority(wanted)) as authority,
        opened(tmp_path, authority, access.address, tls=True) as door,
        contextlib.closing(open_link(access.address, "coordinator-r")) as coordinator,
    ):
        password, status = door.enrol("ann"), topics.status("r", "ann")
        coordinator.subscribe(status)
        with door.open("ann", password) as link:
            assert link.recv(30) == ACCEPTED
            body = pack_text(status) + b"hello"
            link.send(b"\x31" + pack_length(len(body)) + body)  # retained
            eventually(
                lambda: (
                    (found := coordinator.receive(0.1)) is not None and found.payload == b"hello"
                )
            )
            authority.revoke("ann")  # the pipe itself is not told
            assert read_end(link)[0] == 1013
        with door.open("ann", password) as link:
            assert link.recv(30) == NOT_AUTHORISED
        assert (tmp_path / "pki/phones/ann.pem").stat().st_mode & 0o777 == 0o600


def test_the_page_is_sent_compressed_cached_and_protected(alone: Door) -> None:
    status, body, headers = alone.call("GET", "/phone/")
    assert (status, body) == (200, b"<!doctype html>a phone")
    assert {name: headers[name] for name in HEADERS} == HEADERS
    assert headers["cache-control"] == "no-cache"
    asset = "/phone/assets/run-1a2b.wasm"
    for accepted, encoding in (("gzip, deflate, br", "br"), ("gzip", "gzip")):
        status, _, headers = alone.call("GET", asset, headers={"Accept-Encoding": accepted})
        assert (status, headers["content-encoding"]) == (200, encoding)
        assert headers["content-type"] == "application/wasm"
        assert "immutable" in headers["cache-control"]
    assert alone.call("GET", asset)[0] == 404
    assert alone.call("GET", "/")[0] == 307


def test_slow_strangers_do_not_hold_connections(
    alone: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_pipe, "CONNECT_TIMEOUT", 0.5)
    key = base64.b64encode(os.urandom(16)).decode()
    ask = (
        f"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", alone.port), 30) as link:
        link.sendall(ask)
        received = b""
        while piece := link.recv(1000):  # until the server closes
            received += piece
    assert b"101" in received.split(b"\r\n")[0]
    assert b"expected CONNECT" in received
