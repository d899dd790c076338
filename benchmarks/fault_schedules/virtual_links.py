"""Deliver messages between the processes of a schedule in virtual time, through a simulated broker
and links with faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from benchmarks.fault_schedules.random_schedules import Fault
from benchmarks.fault_schedules.virtual_clock import Process, World
from federated.wire.link import Delivery, Payload, Will
from federated.wire.links.memory import MemoryBroker, MemoryLink

__all__ = ["Network", "VirtualLink"]

DELAY = 0.002, 0.05  # range of seconds that a message takes
CHUNK = 8192  # bytes, small enough for several per transfer
LIMIT = 1 << 20  # bytes of a payload
IDLE = 2.0  # least seconds that a waiting process sleeps without a message, to save time


class Network:
    """The broker, all links, and the faults in progress."""

    def __init__(self, world: World) -> None:
        self.world, self.broker = world, MemoryBroker(max_payload=LIMIT)
        self.links: dict[str, VirtualLink] = {}
        self.under_way: list[tuple[Fault, float]] = []

    def begin(self, fault: Fault) -> None:
        """Begin a fault that lasts: it disturbs messages, cuts a link, or stops the broker."""
        self.under_way.append((fault, self.world.now + fault.lasts))

    def disturb(self, name: str, delivery: Delivery) -> list[tuple[float, Delivery]]:
        """Return the copies of a message that arrive between a process and the broker, with their
        delays.
        """
        now, rng, made = self.world.now, self.world.random, [(0.0, delivery)]
        self.under_way = [(fault, until) for fault, until in self.under_way if until > now]
        for fault, until in self.under_way:
            if fault.who != name or rng.random() >= fault.much:
                continue
            if fault.kind == "lose":
                made = []
            elif fault.kind == "double":
                made = [*made, *made]
            elif fault.kind == "delay":
                made = [(max(later, until - now), one) for later, one in made]
            elif fault.kind == "reorder":
                made = [(later + rng.uniform(0.01, 5.0), one) for later, one in made]
            elif fault.kind == "damage" and delivery.payload:
                made = [
                    (
                        later,
                        replace(
                            one, payload=flip_bit(one.payload, rng.randrange(len(one.payload) * 8))
                        ),
                    )
                    for later, one in made
                ]
        return made

    def cut_links(self, names: list[str], seconds: float) -> None:
        """Cut links for some seconds."""
        for name in names:
            link = self.links.get(name)
            if link is not None and not link.ended:
                link.cut(seconds)

    def restart(self, seconds: float, *, forget: bool) -> None:
        """Stop the broker for some seconds.

        forget: lose retained messages and those queued for links
        """
        self.cut_links(list(self.links), seconds)
        if forget:
            self.broker.retained.clear()
            for link in self.links.values():
                link.forgotten = True

    def drop_retained(self, share: float) -> None:
        """Drop a fraction of the retained messages without notice."""
        for topic in list(self.broker.retained):
            if self.world.random.random() < share:
                del self.broker.retained[topic]


def ignore(topic: str, payload: bytes) -> None:
    """Do nothing with a sent message."""


class VirtualLink(MemoryLink):
    """The link of one process. Messages arrive in order, milliseconds after they were sent, unless
    a fault disturbs them.

    wake: called when a message arrives
    sent: called with each sent message
    """

    def __init__(
        self,
        network: Network,
        process: Process,
        will: Will | None = None,
        wake: Callable[[], None] = lambda: None,
        sent: Callable[[str, bytes], None] = ignore,
    ) -> None:
        self.world, self.network, self.process = network.world, network, process
        self.wake, self.sent = wake, sent
        self._last = 0.0
        self._cuts = 0
        self.forgotten = False
        self.drip = self._dripped = 0.0
        super().__init__(network.broker, process.name, will, chunk=CHUNK)
        network.links[process.name] = self

    @property
    def ended(self) -> bool:
        """True after the link was closed."""
        return self._closed

    @property
    def cut_off(self) -> bool:
        """True while the connection is lost."""
        return self._down

    def arrive(self, delivery: Delivery, qos: int) -> None:
        for later, made in self.network.disturb(self.process.name, delivery):
            due = self.world.now + self.world.random.uniform(*DELAY)
            if not later:
                due = self._last = max(self._last, due)
            self.world.after(due + later - self.world.now, lambda made=made: self._come(made, qos))  # type: ignore[misc]

    def _come(self, delivery: Delivery, qos: int) -> None:
        if not self._closed:
            super().arrive(delivery, qos)
            self.wake()

    def publish(self, topic: str, payload: Payload, *, retain: bool = False, qos: int = 1) -> None:
        self.process.count_action()
        self.sent(topic, bytes(payload))
        if self.drip and "/up/" in topic:  # one late chunk at a time
            self._dripped = max(self._dripped, self.world.now) + self.drip
            self.world.after(
                self._dripped - self.world.now,
                partial(self._send, topic, payload, retain=retain, qos=qos),
            )
            return
        self._send(topic, payload, retain=retain, qos=qos)

    def _send(self, topic: str, payload: Payload, *, retain: bool, qos: int) -> None:
        if self._closed:
            return
        for _, made in self.network.disturb(self.process.name, Delivery(topic, bytes(payload))):
            super().publish(made.topic, made.payload, retain=retain, qos=qos)

    def receive(self, timeout: float) -> Delivery | None:
        self.process.count_action()
        until = self.world.now + max(timeout, IDLE)
        while not len(self._deliveries) and timeout and self.world.step(until):
            pass
        while self.world.now < self.process.paused:
            self.world.step(self.process.paused)
        return super().receive(0)

    def flush(self, timeout: float) -> bool:
        until = self.world.now + timeout
        while self._outgoing and self.world.step(until):
            pass
        return not self._outgoing

    def cut(self, seconds: float) -> None:
        """Lose the connection for some seconds."""
        self._cuts += 1
        cut = self._cuts
        self.drop()
        self.wake()
        self.world.after(seconds, lambda: self._mend(cut))

    def _mend(self, cut: int) -> None:
        if self._closed or cut != self._cuts:
            return
        forgotten, self.forgotten = self.forgotten, False
        if forgotten:
            self._incoming = []  # the session is lost, with its queued messages
        self.restore()
        for pattern in sorted(self.patterns) if forgotten else ():
            self._broker.repeat(self, pattern)
        self.wake()


def flip_bit(payload: bytes, bit: int) -> bytes:
    """Return a message with one bit flipped."""
    made = bytearray(payload)
    made[bit // 8] ^= 1 << bit % 8
    return bytes(made)
