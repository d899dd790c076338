"""The MQTT client library, set up: how to connect within a bounded time, and what to tell a person
where that fails.

MQTT 5 is tried first, for the broker's packet limit and its sessions that expire; then 3.1.1, which
everything works on.
"""

from __future__ import annotations

import errno
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from federated.errors import LinkError
from federated.wire import tls
from federated.wire.address import Address
from federated.wire.link import Probe, Will

__all__ = ["MAX_PACKET", "ClientSetup", "Greeting", "Handlers", "connect", "measure", "part"]

log = logging.getLogger(__name__)

MAX_PACKET = 268_435_455  # bytes of an MQTT packet's body (MQTT 5, section 1.5.5)
EXPIRY = 3600  # seconds that a broker keeps a session whose link is down (MQTT 5)
KEEPALIVE = 60  # seconds
INFLIGHT, QUEUED = 8, 64  # messages without acknowledgement, and waiting to be sent
UNKNOWN_USER = ("Bad user name or password", "Not authorized")
HURRY = 2.0  # seconds that the newer protocol has, once there is a connection
# what brokers took, by host and port, so that only the first link has to find out
SPOKEN: dict[tuple[str, int], int] = {}
PROTOCOLS = (mqtt.MQTTv5, mqtt.MQTTv311)

Handler: TypeAlias = Callable[..., None]


@dataclass(frozen=True)
class Handlers:
    """What to call, in the network's thread: nothing here may wait for that thread or raise."""

    connected: Callable[[mqtt.Client, bool], None]  # and whether the broker kept the session
    disconnected: Callable[[mqtt.Client, ReasonCode], None]
    message: Callable[[mqtt.MQTTMessage], None]
    published: Callable[[ReasonCode], None]
    subscribed: Callable[[int, list[ReasonCode]], None]


NOTHING = Handlers(
    lambda c, s: None, lambda c, r: None, lambda m: None, lambda r: None, lambda m, r: None
)


@dataclass(frozen=True)
class ClientSetup:
    """What a client needs before it connects.

    address: of the broker.
    client_id: its name at the broker.
    will: topic and payload that the broker publishes, retained, when the client vanishes.
    handlers: what the network thread calls.
    """

    address: Address
    client_id: str
    will: Will | None = None
    handlers: Handlers = NOTHING


@dataclass
class Greeting:
    """How a broker received a client. max_packet: bytes, where it said so."""

    client: mqtt.Client
    protocol: int
    max_packet: int = MAX_PACKET


class _Door:
    """Waits for the first answer of a broker."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.reason: ReasonCode | None = None
        self.max_packet = MAX_PACKET

    def answer(self, reason: ReasonCode | None, properties: Properties | None) -> None:
        if not self.answered.is_set():
            self.reason = reason
            self.max_packet = getattr(properties, "MaximumPacketSize", MAX_PACKET)
            self.answered.set()


def connect(setup: ClientSetup, *, timeout: float = 10.0, version: int | None = None) -> Greeting:
    """Connect a client, start its network thread, and let it reconnect by itself.

    version: an MQTT protocol number; None: the newest that the broker takes. Raises LinkError
    within `timeout` seconds, saying what was tried and what to do; ConfigError for an unusable CA
    file.
    """
    until = time.monotonic() + timeout
    place = setup.address.host, setup.address.port
    protocols = (
        [version] if version is not None else [p for p in PROTOCOLS if p <= SPOKEN.get(place, p)]
    )
    while True:
        protocol = protocols.pop(0)
        try:
            greeting = _try(setup, protocol, until, hurry=bool(protocols))
        except _ProtocolError as error:
            if not protocols:
                raise LinkError(str(error)) from None
            continue
        SPOKEN[place] = protocol
        return greeting


class _ProtocolError(Exception):
    """The broker does not take this version of the protocol, or shows no sign that it knows it."""


def _try(setup: ClientSetup, protocol: int, until: float, *, hurry: bool) -> Greeting:
    """Connect by one version of the protocol.

    until: when to give up, in monotonic seconds. hurry: whether another version is left to try: a
    broker that knows only that one may wait for the rest of what it cannot read.
    """
    door = _Door()
    client = _client(setup, protocol, door)
    timeout = client.connect_timeout = max(0.1, until - time.monotonic())
    try:
        _dial(client, setup.address, protocol)
    except (OSError, ValueError) as error:
        raise LinkError(_explain(setup.address, error, timeout)) from error
    client.loop_start()
    door.answered.wait(min(HURRY if hurry else timeout, max(0.1, until - time.monotonic())))
    if door.reason is not None and not door.reason.is_failure:
        return Greeting(client, protocol, door.max_packet)
    part(client, protocol)
    raise _refused(setup.address, door.reason)


def _dial(client: mqtt.Client, address: Address, protocol: int) -> None:
    """Open the connection and send the first packet. Raises OSError, ValueError."""
    if protocol != mqtt.MQTTv5:
        client.connect(address.host, address.port, KEEPALIVE)
        return
    client.connect(
        address.host,
        address.port,
        KEEPALIVE,
        # The first connection drops what the broker queued for an earlier process of this name.
        clean_start=mqtt.MQTT_CLEAN_START_FIRST_ONLY,
        properties=_expiry(PacketTypes.CONNECT, EXPIRY),
    )


def _refused(address: Address, reason: ReasonCode | None) -> LinkError | _ProtocolError:
    """Why a broker did not let a client in. reason: its answer; None: it gave none."""
    where = f"no link to the broker at {address}{_resolved(address)}"
    if reason is None:
        if address.tls and (why := tls.refusal(address)):
            return LinkError(f"{where}: {why}")
        return _ProtocolError(
            f"{where}: something listens there, but does not answer as an MQTT broker: "
            "try another port, or mqtts://"
        )
    name = reason.getName()
    if name == "Unsupported protocol version":
        return _ProtocolError(f"{where}: it speaks neither MQTT 5 nor 3.1.1")
    hint = (
        ": give user and password as mqtt://user:password@host, or ask who runs it"
        if name in UNKNOWN_USER
        else ""
    )
    return LinkError(f"{where}: it refuses this client: {name.lower()}{hint}")


def _client(setup: ClientSetup, protocol: int, door: _Door) -> mqtt.Client:
    """Make a client with every option set, as paho wants it before it connects."""
    address, handlers = setup.address, setup.handlers
    options: dict[str, Any] = {} if protocol == mqtt.MQTTv5 else {"clean_session": False}
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        client_id=setup.client_id,
        protocol=MQTTProtocolVersion(protocol),
        **options,
    )
    client.max_inflight_messages_set(INFLIGHT)
    client.max_queued_messages_set(QUEUED)
    if address.user is not None:
        client.username_pw_set(address.user, address.password)
    if setup.will is not None:
        client.will_set(*setup.will, qos=1, retain=True)
    if address.tls:
        made = tls.context(address)
        client.tls_set_context(made)
        client.on_pre_connect = lambda c, _: _show_newest(made, address)
    _jitter(client)

    def on_connect(
        c: mqtt.Client,
        _: Any,
        flags: mqtt.ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if not reason.is_failure:
            handlers.connected(c, flags.session_present)
        door.answer(reason, properties)

    def on_disconnect(
        c: mqtt.Client,
        _: Any,
        flags: mqtt.DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        _jitter(c)
        door.answer(None, properties)
        handlers.disconnected(c, reason)

    client.on_connect = on_connect
    client.on_disconnect = on_disconnect
    client.on_message = lambda c, _, message: handlers.message(message)
    client.on_publish = lambda c, _, mid, reason, properties: handlers.published(reason)
    client.on_subscribe = lambda c, _, mid, reasons, properties: handlers.subscribed(mid, reasons)
    client.on_socket_open = _send_at_once
    return client


def _show_newest(made: ssl.SSLContext, address: Address) -> None:
    """A certificate that was renewed since the last connection is the one to show."""
    try:
        tls.reload(made, address)
    except OSError as error:
        log.warning("%s: going on with the certificate of before: %s", address, error)


def _send_at_once(client: mqtt.Client, _: Any, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def part(client: mqtt.Client, protocol: int) -> None:
    """Signs off, so that the broker forgets the session (MQTT 5) and drops the will, and ends the
    network thread.
    """
    if protocol == mqtt.MQTTv5:
        client.disconnect(properties=_expiry(PacketTypes.DISCONNECT, 0))
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
    """Find the largest of `sizes` (bytes) that the broker acknowledges, and its bytes per second.

    limit: bytes that the broker announced. A broker disconnects a client that sends too much, and
    paho would send the same message again for ever, so each attempt uses a client of its own.
    """
    for size in sorted(sizes, reverse=True):
        rate = _acknowledged(setup, topic, size, version, timeout) if size <= limit else None
        if rate is not None:
            return size, rate
        log.info("a payload of %d bytes does not pass the broker", size)
    raise LinkError(
        f"{setup.address}: the broker takes no payload of {min(sizes)} bytes within "
        f"{timeout:.0f} s: raise its packet limit (mosquitto: max_packet_size)"
    )


def _acknowledged(
    setup: ClientSetup, topic: str, size: int, version: int, timeout: float
) -> float | None:
    """Measure bytes per second over up to four messages; None where no acknowledgement comes."""
    cut = threading.Event()
    handlers = Handlers(
        NOTHING.connected,
        lambda c, r: cut.set(),
        NOTHING.message,
        NOTHING.published,
        NOTHING.subscribed,
    )
    own = replace(setup, handlers=handlers)
    client = connect(own, timeout=timeout, version=version).client
    try:
        sent, start = 0, time.perf_counter()
        while sent == 0 or (sent < 4 and time.perf_counter() - start < 0.3):
            info = client.publish(topic, bytes(size), qos=1)
            while not info.is_published():
                if cut.wait(0.002) or time.perf_counter() - start > timeout:
                    return None
            sent += 1
        return sent * size / (time.perf_counter() - start)
    finally:
        part(client, version)


def _jitter(client: mqtt.Client) -> None:
    """A fleet that lost its broker does not come back all at once: each waits from 1 to 2 s at
    first, up to a minute later on.
    """

    first = 1.0 + random.random()  # noqa: S311  # any number will do
    client.reconnect_delay_set(first, 60.0)  # type: ignore[arg-type]


def _expiry(packet: int, seconds: int) -> Properties:
    properties = Properties(packet)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = seconds
    return properties


def _explain(address: Address, error: Exception, timeout: float) -> str:
    """What a failure to connect means, and what to do about it."""
    match error:
        case socket.gaierror():
            why = f"the name '{address.host}' does not resolve: check it, or give an IP address"
        case ConnectionRefusedError():
            why = (
                "refused, nothing listens there: start a broker (mosquitto, or coordinator "
                "start), or check host and port"
            )
        case ssl.SSLError():
            why = tls.explain(address, error)
        case TimeoutError():
            why = f"no answer within {timeout:.0f} s: wrong address, or a firewall between"
        case OSError(errno=errno.ENETUNREACH | errno.EHOSTUNREACH):
            why = "no route to it: is the network up, and the address right?"
        case OSError(errno=errno.ECONNRESET | errno.EPIPE):
            why = "it hung up: not an MQTT broker, or one that wants TLS (mqtts://)"
        case _:
            why = f"{type(error).__name__}: {error}"
    return f"no link to the broker at {address}{_resolved(address)}: {why}"


def _resolved(address: Address) -> str:
    """The IP addresses of a name, in words."""
    try:
        found = sorted(
            {
                str(info[4][0])
                for info in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            }
        )
    except OSError:
        return ""
    return "" if found == [address.host] else f" ({', '.join(found)})"
