"""A broker and links whose messages take virtual time, and what networks and brokers do to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from benchmarks.schedules.faults import Fault
from benchmarks.schedules.world import Process, World
from federated.wire.delivery_queue import Delivery
from federated.wire.link import Payload, Will
from federated.wire.links.memory import MemoryBroker, MemoryLink

__all__ = ["Cable", "Network"]

DELAY = 0.002, 0.05  # seconds that a message takes, drawn
CHUNK = 8192  # bytes, so that every transfer has several
LIMIT = 1 << 20  # bytes of a payload
# seconds that a process which waits for messages sleeps at least, if none comes: looking more often
# only costs time
IDLE = 2.0


class Network:
    """The broker, all links, and the faults that are under way."""

    def __init__(self, world: World) -> None:
        self.world, self.broker = world, MemoryBroker(max_payload=LIMIT)
        self.links: dict[str, Cable] = {}
        self.under_way: list[tuple[Fault, float]] = []

    def begin(self, fault: Fault) -> None:
        """A fault that lasts: messages suffer, a link is cut, or the broker is away."""
        self.under_way.append((fault, self.world.now + fault.lasts))

    def suffer(self, name: str, delivery: Delivery) -> list[tuple[float, Delivery]]:
        """What becomes of a message on its way between a process and the broker: how much later it
        comes, if it does.
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
                            one, payload=damaged(one.payload, rng.randrange(len(one.payload) * 8))
                        ),
                    )
                    for later, one in made
                ]
        return made

    def hang_up(self, names: list[str], seconds: float) -> None:
        """Links are lost, and come back."""
        for name in names:
            link = self.links.get(name)
            if link is not None and not link.ended:
                link.cut(seconds)

    def restart(self, seconds: float, *, forget: bool) -> None:
        """The broker is away for a while. forget: it lost what it retained, and what it held for
        links.
        """
        self.hang_up(list(self.links), seconds)
        if forget:
            self.broker.retained.clear()
            for link in self.links.values():
                link.forgotten = True

    def lose_retained(self, share: float) -> None:
        """The broker loses a share of what it retained, and tells nobody."""
        for topic in list(self.broker.retained):
            if self.world.random.random() < share:
                del self.broker.retained[topic]


def ignore(topic: str, payload: bytes) -> None:
    """What was sent is nobody's business."""


class Cable(MemoryLink):
    """A link of one process. Messages come in order, each some milliseconds after it was sent,
    unless the network does something to them.

    wake: called when something came. sent: called with each message that was sent.
    """

    def __init__(
        self,
        network: Network,
        process: Process,
        will: Will | None = None,
        wake: Callable[[], None] = lambda: None,
        sent: Callable[[str, bytes], None] = ignore,
    ) -> None:
        self.world, self.network, self.process, self.wake, self.sent = (
            network.world,
            network,
            process,
            wake,
            sent,
        )
        self._last = 0.0
        self._cuts = 0
        self.forgotten = False
        self.drip = self._dripped = 0.0
        super().__init__(network.broker, process.name, will, chunk=CHUNK)
        network.links[process.name] = self

    @property
    def ended(self) -> bool:
        return self._closed

    @property
    def cut_off(self) -> bool:
        """Whether the connection is lost at present."""
        return self._down

    def arrive(self, delivery: Delivery, qos: int) -> None:
        for later, made in self.network.suffer(self.process.name, delivery):
            due = self.world.now + self.world.random.uniform(*DELAY)
            if not later:
                due = self._last = max(self._last, due)
            self.world.after(due + later - self.world.now, lambda made=made: self._come(made, qos))  # type: ignore[misc]

    def _come(self, delivery: Delivery, qos: int) -> None:
        if not self._closed:
            super().arrive(delivery, qos)
            self.wake()

    def publish(self, topic: str, payload: Payload, *, retain: bool = False, qos: int = 1) -> None:
        self.process.pulse()
        self.sent(topic, bytes(payload))
        if self.drip and "/up/" in topic:  # one chunk at a time, each of them late
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
        for _, made in self.network.suffer(self.process.name, Delivery(topic, bytes(payload))):
            super().publish(made.topic, made.payload, retain=retain, qos=qos)

    def receive(self, timeout: float) -> Delivery | None:
        self.process.pulse()
        until = self.world.now + max(timeout, IDLE)
        while not len(self._inbox) and timeout and self.world.step(until):
            pass
        while self.world.now < self.process.paused:
            self.world.step(self.process.paused)
        return super().receive(0)

    def flush(self, timeout: float) -> bool:
        until = self.world.now + timeout
        while self._going and self.world.step(until):
            pass
        return not self._going

    def cut(self, seconds: float) -> None:
        """The connection is lost; it comes back after so many seconds."""
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
            self._coming = []  # the session is lost, and with it what waited for this link
        self.mend()
        for pattern in sorted(self.patterns) if forgotten else ():
            self._broker.repeat(self, pattern)
        self.wake()


def damaged(payload: bytes, bit: int) -> bytes:
    made = bytearray(payload)
    made[bit // 8] ^= 1 << bit % 8
    return bytes(made)
