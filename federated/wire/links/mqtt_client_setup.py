"""Set up the MQTT client library (paho): connect within a timeout, and explain failures.

MQTT 5 is tried first, for the broker's packet limit and for sessions that expire; then 3.1.1, which
all brokers support.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from federated.errors import LinkError
from federated.wire import tls
from federated.wire.link import Probe, Will
from federated.wire.links import connection_error_messages
from federated.wire.links.paho_client import PahoClient
from federated.wire.mqtt_address import MqttAddress

__all__ = [
    "LONGEST_DELAY",
    "MAX_PACKET",
    "ClientSetup",
    "Handlers",
    "connect",
    "disconnect",
    "interrupt",
    "measure",
]

log = logging.getLogger(__name__)

MAX_PACKET = 268_435_455  # bytes of an MQTT packet's body (MQTT 5, section 1.5.5)
EXPIRY = 3600  # seconds that a broker keeps the session of a lost connection (MQTT 5)
KEEPALIVE = 60  # seconds
# seconds between attempts to reconnect. A round that waits for no other agent waits 20 s for one
# that it lost (`coordinator.round.task_state.RETURN_TIME`), also after the coordinator was killed
# with its broker.
LONGEST_DELAY = 10.0
# largest numbers of unacknowledged messages with an unknown broker, and with one that announced how
# many it accepts; and of those that wait to be sent, a task for each agent of a large fleet
INFLIGHT, MOST_INFLIGHT, QUEUED = 8, 32, 10_000
UNKNOWN_USER = ("Bad user name or password", "Not authorized")
REJECTIONS = 2  # connections that end at a message of a size before that size counts as rejected
RETRY = 0.5  # seconds between attempts to measure while the broker closes connections
HURRY = 2.0  # seconds to wait for an answer if another protocol version is left to try
# protocol versions of known brokers, by host and port, so that only the first link has to try
KNOWN_VERSIONS: dict[tuple[str, int], int] = {}
PROTOCOLS = (mqtt.MQTTv5, mqtt.MQTTv311)


def ignore(*given: object) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Handlers:
    """Callbacks in the network's thread, which must not raise nor wait for that thread."""

    on_connect: Callable[[mqtt.Client, bool], None] = ignore  # with whether the session was kept
    on_disconnect: Callable[[mqtt.Client, ReasonCode], None] = ignore  # once it had connected
    on_message: Callable[[mqtt.MQTTMessage], None] = ignore
    on_publish: Callable[[ReasonCode], None] = ignore
    on_subscribe: Callable[[int, list[ReasonCode]], None] = ignore
    on_connect_fail: Callable[[BaseException | None], None] = ignore  # no connection was opened


@dataclass(frozen=True)
class ClientSetup:
    """The settings of a client before it connects.

    address: of the broker.
    client_id: its name at the broker.
    will: topic and payload that the broker publishes, retained, if the client is lost.
    handlers: callbacks of the network thread.
    """

    address: MqttAddress
    client_id: str
    will: Will | None = None
    handlers: Handlers = Handlers()


@dataclass
class Greeting:
    """A connected client.

    client: of the library.
    protocol: MQTT protocol number in use.
    max_packet: the broker's limit in bytes, if it announced one.
    """

    client: mqtt.Client
    protocol: int
    max_packet: int = MAX_PACKET


class _FirstAnswer:
    """Waits for the first answer of a broker."""

    def __init__(self) -> None:
        self.received = threading.Event()
        self.reason: ReasonCode | None = None
        self.max_packet = MAX_PACKET

    def set(self, reason: ReasonCode | None, properties: Properties | None) -> None:
        if not self.received.is_set():
            self.reason = reason
            self.max_packet = getattr(properties, "MaximumPacketSize", MAX_PACKET)
            self.received.set()

    @property
    def accepted(self) -> bool:
        """True if the broker accepted the client."""
        return self.reason is not None and not self.reason.is_failure


def connect(setup: ClientSetup, *, timeout: float = 10.0, version: int | None = None) -> Greeting:
    """Connect a client, start its network thread, and let it reconnect by itself.

    version: MQTT protocol number; None: the newest that the broker supports. Raises LinkError with
    the remedy within `timeout` seconds; ConfigError for an invalid CA file.
    """
    until = time.monotonic() + timeout
    place = setup.address.host, setup.address.port
    protocols = (
        [version]
        if version is not None
        else [p for p in PROTOCOLS if p <= KNOWN_VERSIONS.get(place, p)]
    )
    while True:
        protocol = protocols.pop(0)
        try:
            greeting = _try(setup, protocol, until, hurry=bool(protocols))
        except _ProtocolError as error:
            if not protocols:
                raise LinkError(str(error)) from None
            continue
        KNOWN_VERSIONS[place] = protocol
        return greeting


class _ProtocolError(Exception):
    """The broker rejects this version of the protocol, or does not answer it."""


def _try(setup: ClientSetup, protocol: int, until: float, *, hurry: bool) -> Greeting:
    """Connect with one version of the protocol.

    until: deadline, in monotonic seconds.
    hurry: whether another version is left to try. A broker that supports only the other one may
        wait for the rest of a packet that it cannot parse.
    """
    answer = _FirstAnswer()
    client = _make_client(setup, protocol, answer)
    timeout = client.connect_timeout = max(0.1, until - time.monotonic())
    try:
        _dial(client, setup.address, protocol)
    except (OSError, ValueError) as error:
        raise LinkError(connection_error_messages.explain(setup.address, error, timeout)) from error
    client.loop_start()
    answer.received.wait(min(HURRY if hurry else timeout, max(0.1, until - time.monotonic())))
    if answer.accepted:
        return Greeting(client, protocol, answer.max_packet)
    disconnect(client, protocol)
    raise _make_error(setup.address, answer.reason)


def _dial(client: mqtt.Client, address: MqttAddress, protocol: int) -> None:
    """Open the connection and send the first packet. Raises OSError, ValueError."""
    if protocol != mqtt.MQTTv5:
        client.connect(address.host, address.port, KEEPALIVE)
        return
    client.connect(
        address.host,
        address.port,
        KEEPALIVE,
        # The first connection discards what the broker queued for an earlier process.
        clean_start=mqtt.MQTT_CLEAN_START_FIRST_ONLY,
        properties=_make_expiry(PacketTypes.CONNECT, EXPIRY),
    )


def _make_error(address: MqttAddress, reason: ReasonCode | None) -> LinkError | _ProtocolError:
    """Return the error of a failed connection. reason: the broker's answer; None: no answer."""
    where = connection_error_messages.describe(address)
    if reason is None:
        if address.tls and (why := tls.find_refusal(address)):
            return LinkError(f"{where}: {why}")
        return _ProtocolError(f"{where}: {connection_error_messages.explain_silence(address)}")
    name = reason.getName()
    if name == "Unsupported protocol version":
        return _ProtocolError(f"{where}: it supports neither MQTT 5 nor 3.1.1")
    hint = (
        f": set user and password as {address.scheme}://user:password@host, or ask its operator"
        if name in UNKNOWN_USER
        else ""
    )
    return LinkError(f"{where}: it rejected this client: {name.lower()}{hint}")


def _make_client(setup: ClientSetup, protocol: int, answer: _FirstAnswer) -> PahoClient:
    """Make a client with all options, which paho requires before it connects."""
    address = setup.address
    options: dict[str, Any] = {} if protocol == mqtt.MQTTv5 else {"clean_session": False}
    client = PahoClient(
        address,
        client_id=setup.client_id,
        protocol=MQTTProtocolVersion(protocol),
        transport="tcp" if address.path is None else "websockets",
        **options,
    )
    client.max_inflight_messages_set(INFLIGHT)
    client.max_queued_messages_set(QUEUED)
    if address.user is not None:
        client.username_pw_set(address.user, address.password)
    if address.path is not None:
        client.ws_set_options(address.path)
    if setup.will is not None:
        client.will_set(*setup.will, qos=1, retain=True)
    if address.tls:
        context = tls.make_context(address)
        client.tls_set_context(context)
        client.on_pre_connect = lambda c, _: _reload_certificate(context, address)
    _draw_backoff(client)
    _set_callbacks(client, setup.handlers, answer, protocol)
    return client


def _set_callbacks(
    client: PahoClient, handlers: Handlers, answer: _FirstAnswer, protocol: int
) -> None:
    """Let the library's callbacks call the handlers of the link."""

    def on_connect(
        c: mqtt.Client,
        _: Any,
        flags: mqtt.ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if not reason.is_failure:
            if protocol == mqtt.MQTTv5:
                accepted = getattr(properties, "ReceiveMaximum", MOST_INFLIGHT)
                client.limit_in_flight(min(accepted, MOST_INFLIGHT))
            handlers.on_connect(c, flags.session_present)
        answer.set(reason, properties)

    def on_disconnect(
        c: mqtt.Client,
        _: Any,
        flags: mqtt.DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        _draw_backoff(c)
        answer.set(None, properties)
        if answer.accepted:  # else the broker may lack this version of the protocol
            handlers.on_disconnect(c, reason)

    client.on_connect = on_connect
    client.on_disconnect = on_disconnect
    # the library calls it while it handles the error
    client.on_connect_fail = lambda c, _: handlers.on_connect_fail(sys.exception())
    client.on_message = lambda c, _, message: handlers.on_message(message)
    client.on_publish = lambda c, _, mid, reason, properties: handlers.on_publish(reason)
    client.on_subscribe = lambda c, _, mid, reasons, properties: handlers.on_subscribe(mid, reasons)
    client.on_socket_open = _disable_nagle


def _reload_certificate(context: ssl.SSLContext, address: MqttAddress) -> None:
    """Load a certificate that was renewed since the last connection."""
    try:
        tls.reload(context, address)
    except OSError as error:
        log.warning("%s: cannot reload the certificate, using the old one: %s", address, error)


def _disable_nagle(client: mqtt.Client, _: Any, sock: Any) -> None:
    with _borrow(sock) as own:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _borrow(sock: Any) -> socket.socket:
    """Return the socket below the library's WebSockets or TLS, to be closed after use."""
    return socket.socket(fileno=os.dup(sock.fileno()))


def interrupt(client: mqtt.Client) -> None:
    """Break the connection, as a failing network would."""
    if (sock := client.socket()) is not None:
        with _borrow(sock) as own:
            own.shutdown(socket.SHUT_RDWR)


def disconnect(client: mqtt.Client, protocol: int) -> None:
    """Disconnect without the will, so that the broker removes the session (MQTT 5), and stop the
    network thread.
    """
    if protocol == mqtt.MQTTv5:
        client.disconnect(properties=_make_expiry(PacketTypes.DISCONNECT, 0))
    else:
        client.disconnect()
    client.loop_stop()


def measure(
    setup: ClientSetup,
    topic: str,
    sizes: tuple[int, ...],
    *,
    limit: int,
    version: int,
    timeout: float,
) -> Probe:
    """Return the largest of `sizes` (bytes) that the broker acknowledges, and its bytes per second.

    limit: bytes that the broker announced. A broker disconnects a client that exceeds its limit,
    and paho would resend the message forever, so each attempt uses a client of its own. Raises
    LinkError if the broker accepts none of the sizes, or closes connections for another reason.
    """
    for size in sorted(sizes, reverse=True):
        rate = _measure_rate(setup, topic, size, version, timeout) if size <= limit else None
        if rate is not None:
            return size, rate
        log.info("the broker accepts no payload of %d bytes", size)
    raise LinkError(
        f"{setup.address}: the broker accepts no payload of {min(sizes)} bytes within "
        f"{timeout:.0f} s: raise its packet limit (mosquitto: max_packet_size)"
    )


def _measure_rate(
    setup: ClientSetup, topic: str, size: int, version: int, timeout: float
) -> float | None:
    """Return the bytes per second over up to four messages; None if the broker rejects the size:
    it closes REJECTIONS connections at the first message of this size, or does not acknowledge it
    within `timeout` seconds. Raises LinkError if it also fails without a message of this size.
    """
    until, rejections = time.monotonic() + timeout, 0
    while True:
        try:
            rate = _try_rate(setup, topic, size, version, until)
        except LinkError as error:
            if time.monotonic() + RETRY > until:
                raise
            log.info("%s; retrying", error)
            time.sleep(RETRY)
            continue
        rejections += 1
        if rate is not None or rejections >= REJECTIONS or time.monotonic() > until:
            return rate


def _try_rate(
    setup: ClientSetup, topic: str, size: int, version: int, until: float
) -> float | None:
    """Return the bytes per second over one connection; None if it ends at the first message of this
    size. Raises LinkError if it ends before that message.

    until: deadline, in monotonic seconds.
    """
    cut = threading.Event()
    own = replace(setup, handlers=Handlers(on_disconnect=lambda c, r: cut.set()))
    client = connect(own, timeout=max(0.1, until - time.monotonic()), version=version).client

    def deliver(payload: bytes) -> bool:
        info = client.publish(topic, payload, qos=1)
        while not info.is_published():
            if cut.wait(0.002) or time.monotonic() > until:
                return False
        return True

    try:
        if not deliver(b"0"):
            raise LinkError(
                f"{setup.address}: the broker closes connections also without large packets: it "
                "may restart, or deny this topic; read its log"
            )
        sent, start = 0, time.perf_counter()
        while sent == 0 or (sent < 4 and time.perf_counter() - start < 0.3):
            if not deliver(bytes(size)):
                break
            sent += 1
            end = time.perf_counter()
        return sent * size / (end - start) if sent else None
    finally:
        disconnect(client, version)


def _draw_backoff(client: mqtt.Client) -> None:
    """Draw a first reconnect delay from 1 to 2 s, which grows up to `LONGEST_DELAY`, so that a
    fleet does not reconnect all at once.
    """
    first = 1.0 + random.random()  # noqa: S311  # not used for security
    client.reconnect_delay_set(first, LONGEST_DELAY)  # type: ignore[arg-type]


def _make_expiry(packet: int, seconds: int) -> Properties:
    properties = Properties(packet)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = seconds
    return properties
