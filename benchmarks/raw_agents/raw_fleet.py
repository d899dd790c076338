"""Run many agents without training (raw agents) over real sockets, in one thread. Faults can alter
their messages, cut their links, or kill them.
"""

from __future__ import annotations

import contextlib
import heapq
import selectors
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from benchmarks.raw_agents.raw_agent import Raw, RawAgent
from federated.errors import Refused, WireError
from federated.wire import envelope, messages, topics

__all__ = ["RawFleet"]

TICK = 0.25  # seconds between ticks of an agent, at least
TICKS = 1000  # ticks of all agents per second, at most
KEEPALIVE = 30  # seconds, at least; more for agents that one thread runs too slowly


class Socket:
    """Connection of one agent, driven by the fleet's loop."""

    def __init__(self, fleet: RawFleet, agent: str) -> None:
        self.fleet, self.name = fleet, agent
        self.agent = RawAgent(agent, self.say, self.listen, fleet.how)
        self.client = self._make_client()
        self.allowance, self.due, self.up = 0.0, 0.0, False
        self.delay = 0.5

    def _make_client(self) -> mqtt.Client:
        name = f"{self.fleet.run}-{self.name}"
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            protocol=MQTTProtocolVersion.MQTTv311,
            clean_session=False,
        )
        will = messages.Status(self.name, self.agent.session, False)
        client.will_set(
            topics.status(self.fleet.run, self.name), envelope.encode(will), qos=1, retain=True
        )
        if (files := self.fleet.how.certificates.get(self.name)) is not None:
            client.tls_set(str(files[0]), str(files[1]))
        client.on_connect = lambda c, u, flags, reason, p: self.on_connect(
            str(reason) if reason.is_failure else ""
        )
        client.on_message = lambda c, u, message: self.on_message(
            message.topic, bytes(message.payload)
        )
        client.on_socket_open = lambda c, u, sock: self.fleet.watch(self, sock)
        client.on_socket_close = lambda c, u, sock: self.fleet.forget(self, sock)
        client.on_socket_register_write = lambda c, u, sock: self.fleet.wants(
            self, sock, write=True
        )
        client.on_socket_unregister_write = lambda c, u, sock: self.fleet.wants(
            self, sock, write=False
        )
        return client

    def connect(self) -> None:
        """Connect, or try again later."""
        self.due = time.monotonic() + self.delay
        try:
            address = self.fleet.how.addresses.get(self.name, self.fleet.address)
            self.client.connect(*address, keepalive=max(KEEPALIVE, len(self.fleet.sockets) // 10))
        except OSError:
            self.delay = min(3.0, self.delay * 1.5)

    def on_connect(self, refused: str) -> None:
        """Handle the broker's answer. refused: its reason; empty if it admits the agent."""
        if refused:
            self.agent.refused.append(f"the broker: {refused}")
            return
        self.up, self.delay = True, 0.5
        self.agent.on_connect(self.fleet.run)

    def on_message(self, topic: str, payload: bytes) -> None:
        if not payload:
            return
        if (slow := self.fleet.how.slow.get(self.name)) is not None:
            self.allowance = max(self.allowance, time.monotonic()) + len(payload) / slow
            self.fleet.pause(self)
        try:
            self.agent.handle(topic, payload, time.monotonic())
        except (WireError, Refused) as error:
            self.agent.refused.append(str(error))

    def say(self, topic: str, payload: bytes, retained: bool, qos: int) -> None:
        altered = [(topic, payload)]
        for alter in self.fleet.how.alter:
            altered = [new for old in altered for new in alter(self.name, *old)]
        for where, what in altered:
            self.client.publish(where, what, qos=qos, retain=retained)

    def listen(self, pattern: str, wanted: bool) -> None:
        if wanted:
            self.client.subscribe(pattern, qos=1)
        else:
            self.client.unsubscribe(pattern)

    def cut(self) -> None:
        """Cut the connection without a DISCONNECT; the agent keeps its state."""
        sock = self.client.socket()
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]  # it is a socket
            self.client.loop_read()

    def kill(self) -> None:
        """Simulate a kill of the agent's process: cut the connection and reset the agent."""
        self.cut()
        self.agent.restart()
        self.client = self._make_client()
        self.due = time.monotonic() + self.delay


class RawFleet:
    """Many raw agents of one run, driven by `turn` in the caller's thread."""

    def __init__(self, run: str, names: Sequence[str], address: tuple[str, int], how: Raw) -> None:
        self.run, self.address, self.how = run, address, how
        self._selector = selectors.DefaultSelector()
        self.sockets = {name: Socket(self, name) for name in names}
        self._tick_every = max(TICK, len(names) / TICKS)
        self._timers = [(0.0, name) for name in names]
        heapq.heapify(self._timers)

    @property
    def agents(self) -> list[RawAgent]:
        return [one.agent for one in self.sockets.values()]

    @property
    def connected(self) -> int:
        return sum(one.client.is_connected() for one in self.sockets.values())

    def describe_refusals(self) -> str:
        """Return a line that says why agents were refused last; empty if none was."""
        found = {agent.refused[-1] for agent in self.agents if agent.refused}
        return f"\nrefused agents: {'; '.join(sorted(found))}" if found else ""

    def turn(self, timeout: float) -> None:
        """Handle messages that arrive within `timeout` seconds, and work that is due."""
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, name = heapq.heappop(self._timers)
            self._tick(self.sockets[name], now)
            heapq.heappush(self._timers, (now + self._tick_every, name))
        wait = min(timeout, max(0.0, self._timers[0][0] - now)) if self._timers else timeout
        if not self._selector.get_map():
            time.sleep(wait)
            return
        for key, events in self._selector.select(wait):
            one: Socket = key.data
            if events & selectors.EVENT_READ:
                one.client.loop_read()
                while _has_decrypted(one.client.socket()):  # of which `select` knows nothing
                    one.client.loop_read()
            if events & selectors.EVENT_WRITE:
                one.client.loop_write()

    def close(self) -> None:
        """End all connections."""
        for one in self.sockets.values():
            sock = one.client.socket()
            one.client.disconnect()
            one.client.on_socket_unregister_write = one.client.on_socket_close = None
            if sock is not None:
                sock.close()
        self._selector.close()

    def _tick(self, one: Socket, now: float) -> None:
        if one.client.socket() is None:
            if now >= one.due:
                one.connect()
            return
        one.client.loop_misc()
        if one.allowance and now >= one.allowance:
            one.allowance = 0.0
            self.wants(one, one.client.socket(), write=one.client.want_write())
        if one.client.is_connected():
            one.agent.tick(now)

    # ---- sockets ---------------------------------------------------------------------------------

    def watch(self, one: Socket, sock: Any) -> None:
        self._selector.register(sock, selectors.EVENT_READ, one)

    def forget(self, one: Socket, sock: Any) -> None:
        self._forget(sock)
        one.up = False

    def wants(self, one: Socket, sock: Any, *, write: bool) -> None:
        events = (0 if one.allowance else selectors.EVENT_READ) | (
            selectors.EVENT_WRITE if write else 0
        )
        self._forget(sock)
        if events:
            self._selector.register(sock, events, one)

    def pause(self, one: Socket) -> None:
        """Stop reading the socket of a slow agent until its allowance allows more."""
        self.wants(one, one.client.socket(), write=one.client.want_write())

    def _forget(self, sock: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)


def _has_decrypted(sock: Any) -> bool:
    """Return True if TLS has decrypted bytes that were not read yet."""
    return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0
