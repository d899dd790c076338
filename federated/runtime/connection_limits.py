"""Limit the connections of a web server, in front of its event loop, so that a flood costs little
and honest clients get in.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from federated.system.process_limits import get_descriptor_limit

__all__ = [
    "Acceptor",
    "Connection",
    "Limits",
    "RateLimiter",
    "find_client",
    "listen",
]

log = logging.getLogger(__name__)

BACKLOG = 128  # connections that the kernel keeps until they are accepted
BATCH = 32  # connections to accept before the event loop serves the open ones
SHARE = 4  # a server may use 1/4 of the descriptors of its process; the rest is for other work
PAUSE = 0.1  # seconds without accepting when the process has no descriptor left
UNREAD = 30_000  # milliseconds after which the kernel ends a connection whose client reads nothing
KEYS = 4096  # clients whose rates are remembered
REPORT_INTERVAL = 60.0  # seconds between two warnings about closed connections


@dataclass(frozen=True)
class Limits:
    """Limits of a server. Rates allow bursts of twice the number per second.

    connections: open at a time, and at most a quarter of the descriptors of this process. A new
        connection beyond that replaces the oldest idle one of the address with the most. If none is
        idle, it replaces the oldest request of the address with the most connections, if that
        address would still have as many as its own.
    farewell: seconds that open requests have to finish when the server closes.
    idle: seconds in which a request must begin, else the connection is closed; None: unlimited.
    lifetime: seconds of a connection, TLS handshake included; None: unlimited.
    per_address: connections open at a time from one address; None: `connections`. A new one beyond
        that replaces the address's oldest idle one.
    rate: connections per address and second that send something; further ones are closed.
    requests: requests per client and second; further ones are answered with 429, and their
        connections closed. A client is a certificate, or an address without one.
    message: bytes of the largest message over a WebSocket; 0: no WebSockets, which need the package
        `websockets`.
    """

    connections: int
    farewell: float
    idle: float | None = None
    lifetime: float | None = None
    per_address: int | None = None
    rate: float = 200.0
    requests: float = 1000.0
    message: int = 0


class RateLimiter:
    """Limits events per key to `rate` per second, in bursts of up to twice that number.

    Remembers the last `KEYS` keys. The algorithm is GCRA (ITU-T I.371): one time per key.
    """

    def __init__(self, rate: float) -> None:
        self._interval, self._full = 1 / rate, dict[object, float]()

    def wait(self, key: object, now: float) -> float:
        """Count an event and return 0, or return the seconds until the next one is allowed."""
        full = max(self._full.pop(key, now), now)  # when the whole burst is available again
        late = full - now + self._interval - max(2.0, self._interval)
        self._full[key] = full if late > 0 else full + self._interval
        if len(self._full) > KEYS:
            del self._full[next(iter(self._full))]
        return max(late, 0.0)


@dataclass(eq=False)
class Connection:
    """An accepted connection.

    socket: of the server's side.
    address: of the client, see `find_client`; or its name, see `Acceptor.identify`.
    opened: when it was accepted, on the event loop's clock.
    since: when it became idle.
    busy: a request is being read or answered.
    begun: an idle client has sent a part of a handshake or of a request.
    transport: None until the TLS handshake is done.
    """

    socket: socket.socket
    address: str
    opened: float
    since: float = field(init=False)
    busy: bool = False
    begun: bool = False
    transport: asyncio.Transport | None = None

    def __post_init__(self) -> None:
        self.since = self.opened

    def close(self) -> None:
        """Close the connection at once. The event loop then releases its descriptor."""
        if self.transport is not None:
            self.transport.abort()
        else:
            with contextlib.suppress(OSError):  # closed already
                self.socket.shutdown(socket.SHUT_RDWR)


class Acceptor:
    """Accepts connections within limits, in an event loop. Takes the place of `asyncio.Server`.

    A client that connects and hangs up, or sends nothing, never reaches TLS or HTTP.
    """

    def __init__(
        self,
        listener: socket.socket,
        limits: Limits,
        make_protocol: Callable[[Connection], asyncio.Protocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        """Start accepting from a listening socket in the running event loop."""
        self._listener, self._limits, self._make, self._tls = listener, limits, make_protocol, tls
        self._most = min(limits.connections, max(8, get_descriptor_limit() // SHARE))
        self._open: dict[Connection, None] = {}  # by the time since which they are idle
        self._crowds = Counter[str]()  # open connections of each address
        self._rates = RateLimiter(limits.rate)
        self._loop = asyncio.get_running_loop()
        self._tasks = set[asyncio.Task[None]]()
        self._refused, self._reported = 0, self._loop.time()
        timeouts = [seconds for seconds in (limits.idle, limits.lifetime) if seconds is not None]
        self._interval = min([1.0, *(seconds / 4 for seconds in timeouts)])
        self._sweeping = self._loop.call_later(self._interval, self._sweep)
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Stop accepting. Open connections stay open, except those without a request yet."""
        self._sweeping.cancel()
        self._loop.remove_reader(self._listener)
        for connection in [one for one in self._open if one.transport is None]:
            self._evict(connection)

    async def wait_closed(self) -> None:
        """Return at once: uvicorn waits for the connections itself."""

    def set_idle(self, connection: Connection) -> None:
        """Record that a connection has no request now."""
        connection.busy = connection.begun = False
        connection.since = self._loop.time()
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def identify(self, connection: Connection, client: str, most: int) -> None:
        """Count a connection for a client that has proved who it is, no longer for its address.
        Close the client's oldest connections beyond `most`.
        """
        if connection not in self._open:
            return
        self.forget(connection)
        connection.address = client
        self._open[connection] = None
        self._crowds[client] += 1
        own = [one for one in self._open if one.address == client]
        for one in own[:-most]:
            self._refused += 1
            self._evict(one)

    def forget(self, connection: Connection) -> None:
        """Record that a connection is closed."""
        if connection in self._open:
            del self._open[connection]
            self._crowds[connection.address] -= 1
            if not self._crowds[connection.address]:
                del self._crowds[connection.address]

    # ---- accepting -------------------------------------------------------------------------------

    def _resume(self) -> None:
        if not self._sweeping.cancelled():
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(BATCH):
            try:
                made, peer = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor or no memory is left
                self._make_room()
                log.warning("cannot accept a connection: %s", error.strerror)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(PAUSE, self._resume)
                return
            made.setblocking(False)
            self._admit(Connection(made, find_client(peer[0]), self._loop.time()))

    def _admit(self, connection: Connection) -> None:
        """Wait for the first byte of a connection, if there is room for it."""
        sent = has_data(connection.socket)
        own = self._limits.per_address or self._most
        if sent is False or not (
            (self._crowds[connection.address] < own or self._make_room(connection.address))
            and (
                len(self._open) < self._most
                or self._make_room()
                or self._make_room_in_crowd(connection.address)
            )
        ):
            self._refused += sent is not False
            connection.socket.close()
            return
        self._open[connection] = None
        self._crowds[connection.address] += 1
        if sent:
            self._start(connection)
        else:
            self._loop.add_reader(connection.socket, self._wake, connection)

    def _wake(self, connection: Connection) -> None:
        self._loop.remove_reader(connection.socket)
        if has_data(connection.socket):
            self._start(connection)
        else:
            self._drop(connection)

    def _start(self, connection: Connection) -> None:
        """Start TLS or HTTP, unless the address opens too many connections."""
        if self._rates.wait(connection.address, self._loop.time()):
            self._refused += 1
            self._drop(connection)
            return
        connection.begun = True
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD)
        task = self._loop.create_task(self._connect(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: Connection) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make(connection), connection.socket, ssl=self._tls
            )
        except OSError:  # the TLS handshake failed; asyncio closes the socket
            self.forget(connection)

    # ---- closing ---------------------------------------------------------------------------------

    def _make_room(self, address: str = "") -> bool:
        """Close an idle connection of an address, or of the idle address with the most connections;
        first one whose client has sent nothing. Return False if none is idle.
        """
        idle = [one for one in self._open if not one.busy and address in ("", one.address)]
        if not idle:
            return False
        crowd = max((one.address for one in idle), key=self._crowds.__getitem__)
        idle = [one for one in idle if one.address == crowd]
        self._refused += 1
        self._evict(next((one for one in idle if not one.begun), idle[0]))
        return True

    def _make_room_in_crowd(self, address: str) -> bool:
        """Close the oldest request of the address with the most connections, so that a few
        addresses cannot keep all others out by sending slowly. Return False if that address would
        then have fewer than the newcomer's.
        """
        crowd = max(self._crowds, key=self._crowds.__getitem__)
        if self._crowds[crowd] <= self._crowds[address] + 1:
            return False
        self._refused += 1
        self._evict(next(one for one in self._open if one.address == crowd))
        return True

    def _evict(self, connection: Connection) -> None:
        if connection.transport is None and not connection.begun:
            self._loop.remove_reader(connection.socket)
            self._drop(connection)
        else:
            self.forget(connection)
            connection.close()

    def _drop(self, connection: Connection) -> None:
        """Close a connection that the event loop does not use."""
        self.forget(connection)
        connection.socket.close()

    def _sweep(self) -> None:
        """Close connections whose time is over."""
        now, limits = self._loop.time(), self._limits
        for one in list(self._open):
            idle = limits.idle is not None and not one.busy and now - one.since >= limits.idle
            if idle or (limits.lifetime is not None and now - one.opened >= limits.lifetime):
                self._evict(one)
        if self._refused and now - self._reported >= REPORT_INTERVAL:
            log.warning("closed %d connections beyond the limits of the server", self._refused)
            self._refused, self._reported = 0, now
        self._sweeping = self._loop.call_later(self._interval, self._sweep)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 picks a free one. Raises OSError."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def find_client(host: str) -> str:
    """Return the address of a client; for IPv6 its network of 64 bits, which one client may own."""
    address: Any = ipaddress.ip_address(host.partition("%")[0])
    if address.version == 4:
        return host
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), 64), strict=False))


def has_data(connection: socket.socket) -> bool | None:
    """Return True if a client has sent something, False if it hung up, None if neither."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return None
    except OSError:
        return False
