"""Connect a phone's WebSocket with the broker: check its password and each packet that it sends,
and pass bytes both ways.

The broker sees the phone as the agent whose certificate the server holds. Without TLS it sees the
coordinator's user, if it asks for one; then only the checks here limit what the phone may do, and
to which run it has access.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from dataclasses import dataclass, replace

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

from coordinator.phones import mqtt_packets as packets
from coordinator.phones.phone_enrolment import NO_RIGHT, Phone, PhoneEnrolment
from federated.errors import EspalierError, LinkError, Malformed, Refused
from federated.runtime.web_server import IDENTIFY
from federated.wire import tls
from federated.wire.mqtt_address import MqttAddress

__all__ = ["Pipes", "Upstream"]

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 10.0  # seconds for a client's CONNECT
CHECKING = 4  # passwords checked, and connections to the broker opened, at a time
PIECE = 64 << 10  # bytes read from the broker at a time
PER_PHONE = 4  # connections of a phone at a time; a further one replaces the oldest
WATCH = 1.0  # seconds between two looks whether the phone was revoked
# close codes of WebSockets (RFC 6455, section 7.4.1, and IANA's registry)
GOING_AWAY, POLICY, TOO_BIG, TRY_AGAIN = 1001, 1008, 1009, 1013
LONGEST_REASON = 123  # bytes


@dataclass(frozen=True)
class Upstream:
    """The broker behind the pipes.

    address: with the coordinator's credentials.
    certificates: whether a phone shows its own certificate instead.
    limit: bytes of the largest packet.
    """

    address: MqttAddress
    certificates: bool
    limit: int

    def locate(self, phone: Phone) -> MqttAddress:
        """Return the broker's address with the credentials for a phone."""
        if not self.certificates:
            return self.address
        return replace(self.address, cert=str(phone.pem), key=None, user=None, password=None)


class End(Exception):
    """The end of a pipe, with the close code and reason for the client."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Pipes:
    """The pipes of all phones.

    limit: bytes of the largest message.
    revoked: serial numbers of revoked certificates; pipes of their phones end within `WATCH`.
    excluded: names of phones without the right to the run; their pipes end, too.
    """

    def __init__(self, enrolment: PhoneEnrolment, upstream: Upstream) -> None:
        self._enrolment, self._upstream = enrolment, upstream
        self._checking = anyio.CapacityLimiter(CHECKING)
        self.limit = upstream.limit
        self.refresh()

    def refresh(self) -> None:
        """Read which phones may not be served. Raises StoreError."""
        self.revoked = self._enrolment.list_revoked()
        self.excluded = self._enrolment.list_excluded()

    async def serve(self, socket: WebSocket) -> None:
        """Serve an accepted WebSocket until it or the connection to the broker ends."""
        end = End(GOING_AWAY, "")
        try:
            await self._serve(socket)
        except End as caught:
            end = caught
        except WebSocketDisconnect:
            return
        except TimeoutError:
            end = End(POLICY, f"expected CONNECT within {CONNECT_TIMEOUT:g} s")
        except packets.TooLarge as error:
            end = End(TOO_BIG, str(error))
        except (Malformed, Refused) as error:
            end = End(POLICY, str(error))
        except EspalierError as error:
            log.warning("a phone cannot be served: %s", error)
            end = End(TRY_AGAIN, "the coordinator cannot serve this phone now; see its log")
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError):  # it is gone
            reason = end.reason.encode()[:LONGEST_REASON].decode(errors="ignore")
            await socket.close(end.code, reason)

    async def _serve(self, socket: WebSocket) -> None:
        reader = packets.PacketReader(self._upstream.limit)
        with anyio.fail_after(CONNECT_TIMEOUT):
            while not (found := list(reader.read(await receive(socket)))):
                pass
        connect, phone = await self._admit(socket, found[0])
        self.excluded -= {phone.name}  # it has the right now, whatever the last `refresh` read
        socket.scope[IDENTIFY](f"phone {phone.name}", PER_PHONE)
        try:
            broker, sender = await self._dial(phone)
        except (OSError, LinkError) as error:
            log.warning("a phone cannot reach the broker: %s", error)
            await socket.send_bytes(packets.UNAVAILABLE)
            raise End(TRY_AGAIN, "the broker cannot be reached; try again later") from error
        try:
            sender.write(self._format_connect(connect, phone))
            up = Up(socket, reader, sender, (self._enrolment.run, phone.name))
            await up.send(found[1:])
            await self._pass(phone, up, broker, 1.5 * connect.keepalive)
        except OSError as error:
            raise End(TRY_AGAIN, "the connection to the broker was lost") from error
        finally:
            sender.close()  # if the client sent no DISCONNECT, the broker publishes its will

    async def _admit(
        self, socket: WebSocket, first: packets.Packet
    ) -> tuple[packets.Connect, Phone]:
        """Return the content of CONNECT and the phone that sent it. Raises Malformed, Refused."""
        connect = packets.parse_connect(first)
        if connect is None:
            await socket.send_bytes(packets.UNSUPPORTED)
            raise Refused("expected MQTT 3.1.1")
        admit = functools.partial(self._enrolment.admit, connect.user, connect.password)
        try:
            phone = await anyio.to_thread.run_sync(admit, limiter=self._checking)
            packets.check_connect(connect, self._enrolment.run, phone.name)
        except Refused:
            await socket.send_bytes(packets.NOT_AUTHORISED)
            raise
        return connect, phone

    def _format_connect(self, connect: packets.Connect, phone: Phone) -> bytes:
        """Return CONNECT as the broker expects it from this phone."""
        address = self._upstream.locate(phone)
        identifier = tls.make_private_name(replace(address, cert=str(phone.pem)), phone.name)
        return packets.format_connect(connect, identifier, address.user, address.password)

    async def _dial(self, phone: Phone) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the broker. Raises OSError, LinkError."""
        address, call = self._upstream.locate(phone), anyio.to_thread.run_sync
        context = await call(tls.make_context, address) if address.tls else None
        plain = await call(tls.dial, address, tls.TIMEOUT, limiter=self._checking)
        plain.setblocking(False)
        name = None if context is None else address.host
        try:
            with anyio.fail_after(tls.TIMEOUT):
                return await asyncio.open_connection(
                    sock=plain, ssl=context, server_hostname=name, limit=PIECE
                )
        except BaseException:
            plain.close()
            raise

    async def _pass(self, phone: Phone, up: Up, broker: asyncio.StreamReader, idle: float) -> None:
        """Pass bytes both ways until one side ends. idle: seconds without a message."""
        tasks = [
            asyncio.ensure_future(one)
            for one in (up.run(idle), self._send_down(broker, up.socket), self._watch(phone))
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()  # raises

    async def _send_down(self, broker: asyncio.StreamReader, socket: WebSocket) -> None:
        while piece := await broker.read(PIECE):
            await socket.send_bytes(piece)
        raise End(TRY_AGAIN, "the broker closed the connection")

    async def _watch(self, phone: Phone) -> None:
        while phone.serial not in self.revoked and phone.name not in self.excluded:
            await anyio.sleep(WATCH)
        revoked = phone.serial in self.revoked
        raise End(POLICY, "this phone was revoked" if revoked else NO_RIGHT)


class Up:
    """The way from a phone to the broker.

    socket: of the phone.
    """

    def __init__(
        self,
        socket: WebSocket,
        reader: packets.PacketReader,
        sender: asyncio.StreamWriter,
        place: tuple[str, str],
    ) -> None:
        """place: the run, and the name of the phone's agent."""
        self.socket, self._reader, self._sender = socket, reader, sender
        self._run, self._agent = place

    async def run(self, idle: float) -> None:
        while True:
            try:
                with anyio.fail_after(idle):
                    data = await receive(self.socket)
            except TimeoutError as error:
                raise End(POLICY, f"nothing was received for {idle:g} s") from error
            await self.send(list(self._reader.read(data)))

    async def send(self, found: list[packets.Packet]) -> None:
        """Check packets and send them. Raises Malformed, Refused, OSError."""
        for packet in found:
            packets.check_packet(packet, self._run, self._agent)
            self._sender.write(packet.raw)
        await self._sender.drain()


async def receive(socket: WebSocket) -> bytes:
    """Return the next message. Raises WebSocketDisconnect, Malformed for a text."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", GOING_AWAY))
    if (data := message.get("bytes")) is None:
        raise Malformed("expected binary messages")
    return bytes(data)
