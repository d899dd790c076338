"""Agents made of nothing but the protocol: hundreds in one process and one thread, over real sockets to a real broker.

They learn nothing: an update is the received weights and a little noise, a function of (weights, agent, round) alone, so that whoever knows which
updates were folded can compute the model that must come of it. A fault may bend what they send, cut their links, or end them.
"""

from __future__ import annotations

import contextlib
import heapq
import selectors
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import paho.mqtt.client as mqtt
from numpy.typing import NDArray
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from federated.errors import Refused, WireError
from federated.task import HEARTBEAT, Card, Profile, Task, Timing, Update, beats
from federated.wire import envelope, messages, tensors, topics
from federated.wire.chunks import Receiver, Sender, split
from models.submodel import Submodel

__all__ = ["Raw", "RawAgent", "RawFleet", "encoded", "learned", "unsent"]

CARD = Card("digits", (1, 8, 8), "uint8", 10, 100, 20, (5.0,), (6.0,))
STALLED = 5.0  # seconds without a chunk after which the weights are asked for again
EARLY = 64  # chunks kept until their manifest comes
TICK = 0.25  # seconds between looks at what is due
SCALE = 1e-3  # of the noise, beside weights of about 0.1

Array = NDArray[Any]
Bend = Callable[[str, str, bytes], Iterable[tuple[str, bytes]]]
"""What an agent publishes instead of (agent, topic, payload)."""


@dataclass(frozen=True)
class Raw:
    """How a fleet of raw agents behaves. delay: seconds that a training takes. beside: where each connects to, by name, if not to the broker.

    chunk: bytes of an update's chunks. slow: bytes per second that an agent takes in, by name; others as fast as they come.
    """

    delay: float = 0.0
    chunk: int = 64 << 10
    beside: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    slow: Mapping[str, float] = field(default_factory=dict)
    bend: Bend | None = None


def learned(weights: Mapping[str, Array], agent: str, round: int) -> dict[str, Array]:
    """What an agent makes of its weights in a round: float32 noise of SCALE on top, repeatable to the bit."""
    rng = np.random.default_rng([zlib.crc32(agent.encode()), round])
    return {name: w + np.float32(SCALE) * rng.standard_normal(w.shape, np.float32) for name, w in weights.items()}


def unsent(run: str, round: int, attempt: int, agent: str, submodel: Submodel, version: str) -> Update:
    """What an agent says beside its tensors: samples, steps and loss of its own, the same whenever it is asked."""
    number = zlib.crc32(f"{agent} {round}".encode())
    notes = {"loss": 1.0 + number % 100 / 100, "labels": list(range(CARD.outputs))}
    return Update(run, round, attempt, agent, "train", submodel, version, 10 + number % 90, 1, {}, notes)


def encoded(update: Update, values: Mapping[str, Array]) -> bytes:
    """An update as it travels."""
    return bytes(tensors.encode(msgspec.to_builtins(update), values))


class RawAgent:
    """One agent: what it hears, it answers by `say`. It survives its link, and `reborn` makes another process of it."""

    def __init__(self, name: str, say: Callable[[str, bytes, bool, int], None], listen: Callable[[str, bool], None], how: Raw) -> None:
        """say: topic, payload, retained, QoS. listen: a pattern, and whether it is to be heard."""
        self.name, self.how = name, how
        self._say, self._listen = say, listen
        self.card: messages.Run | None = None
        self.over = ""
        self.lives = 0
        self.accepted: dict[int, str] = {}  # round -> sha256 of the update that the coordinator took
        self.refused: list[str] = []
        self.asked_again = 0  # tasks of a round whose update had been taken
        self.progressed = 0.0
        self.sent_bytes = 0
        self.reborn()

    def reborn(self) -> None:
        """Forgets everything, as a process does that is killed."""
        self.lives += 1
        self.session = f"{self.name}-{self.lives}"
        self.task: Task | None = None
        self.receiver: Receiver | None = None
        self.base = self.state = ""
        self.sender: Sender | None = None
        self.known: tuple[str, dict[str, Array]] | None = None
        self.beaten = self.ready_at = 0.0
        self.waiting: bytes | None = None  # the update, until it is settled
        self.early: list[messages.Chunk] = []  # chunks that came before their manifest, which is published last

    # ---- hearing -------------------------------------------------------------------------------------------------------

    def linked(self, run: str) -> None:
        """The link is there, at first or again."""
        for pattern in topics.agent_patterns(run, self.name):
            self._listen(pattern, True)
        if self.base:
            self._listen(f"{self.base}/#", True)
        if self.card is not None:
            self.introduce()
        self.offer_again()

    def hear(self, topic: str, payload: bytes, now: float) -> None:
        match envelope.decode(payload):
            case messages.Run() as card:
                self.meet(card)
            case Task() as task:
                self.take(task, now)
            case messages.Manifest() | messages.Chunk() as message if self.base and topic.startswith(self.base + "/"):
                self.fetch(message, now)
            case messages.Grant() as grant if self.sender is not None and grant.transfer == self.sender.manifest.transfer:
                self.sender.granted(grant.have, grant.open, now)
                self.send(now)
            case messages.Receipt() as receipt:
                self.settle(receipt)
            case messages.Abort() as abort if self.task is not None and (self.task.round, self.task.attempt) <= (abort.round, abort.attempt):
                self.drop()
            case messages.Goodbye() as goodbye:
                self.over = goodbye.reason
            case messages.Refusal() as refusal:
                self.refused.append(refusal.reason)
            case _:
                pass

    def meet(self, card: messages.Run) -> None:
        known, self.card = self.card, card
        if card.network is not None and (known is None or (known.session, known.network) != (card.session, card.network)):
            self.introduce()
            self.offer_again()

    def introduce(self) -> None:
        assert self.card is not None
        run, timings = self.card.run, tuple(Timing(submodel, self.card.batch, 0.001) for submodel in self.card.calibration)
        profile = Profile(self.name, "raw", "raw", 1.0, 4 << 30, 1e8, 256 << 10, "torch", CARD, timings)
        self._say(topics.profile(run, self.name), envelope.encode(profile), True, 1)
        self._say(topics.status(run, self.name), envelope.encode(messages.Status(self.name, self.session, True)), True, 1)

    def take(self, task: Task, now: float) -> None:
        if task.work != "train":
            return
        if self.task is not None:
            known, said = (self.task.round, self.task.attempt), (task.round, task.attempt)
            if said < known or (said == known and (self.base or self.waiting is not None)):
                return
        self.asked_again += task.round in self.accepted
        self.drop()
        self.task, self.progressed = task, now
        if self.known is not None and self.known[0] == task.digest:
            self.train(task, now)
            return
        self.base = topics.model(task.run, task.version, task.submodel.name)
        self._listen(f"{self.base}/#", True)

    def fetch(self, message: messages.Manifest | messages.Chunk, now: float) -> None:
        task = self.task
        if task is None:
            return
        if isinstance(message, messages.Manifest):
            if message.sha256 == task.digest and (self.receiver is None or self.receiver.manifest != message):
                self.receiver = Receiver(message, limit=task.size)
            early, self.early = self.early, []
            for chunk in early:
                self.fetch(chunk, now)
            return
        if self.receiver is None:
            self.early = [*self.early, message][-EARLY:]
            return
        if message.transfer != self.receiver.manifest.transfer:
            return
        if self.receiver.take(message, now):
            self.progressed = now
        if self.receiver.complete:
            blob = self.receiver.finish()
            self.receiver = None
            self._listen(f"{self.base}/#", False)
            self.base = ""
            self.known = task.digest, dict(tensors.decode(blob)[1])
            self.train(task, now)

    def settle(self, receipt: messages.Receipt) -> None:
        if self.sender is None or self.task is None or receipt.transfer != self.sender.manifest.transfer:
            return
        if receipt.accepted:
            self.accepted[self.task.round] = self.sender.manifest.sha256
        else:
            self.refused.append(receipt.reason)
        self.sender = self.waiting = None

    # ---- doing ---------------------------------------------------------------------------------------------------------

    def train(self, task: Task, now: float) -> None:
        assert self.known is not None
        update = unsent(task.run, task.round, task.attempt, self.name, task.submodel, task.version)
        self.waiting, self.ready_at = encoded(update, learned(self.known[1], self.name, task.round)), now + self.how.delay
        self.tick(now)

    def tick(self, now: float) -> None:
        """What is due."""
        if self.card is None or self.over:
            return
        if self.waiting is not None and self.task is not None and self.sender is None and now >= self.ready_at:
            manifest = split(self.waiting, self.how.chunk, f"{self.task.round}-{self.task.attempt}-train-{self.task.submodel.name}".replace("@", "_"))
            self.sender = Sender(manifest, self.waiting, now)
            self.offer(self.task, manifest)
        if self.sender is not None and self.task is not None and self.sender.stalled(now):
            self.offer(self.task, self.sender.manifest)
        self.send(now)
        if self.base and now - self.progressed > STALLED:
            self.progressed = now
            self._listen(f"{self.base}/#", False)
            self._listen(f"{self.base}/#", True)
        state = "send" if self.sender is not None else "train" if self.waiting is not None else "download" if self.base else "idle"
        pace = beats(self.task.lease) if self.task is not None and state != "idle" else HEARTBEAT
        if now - self.beaten > pace or state != self.state:
            self.beaten, self.state = now, state
            number = self.task.round if self.task is not None else 0
            beat = messages.Heartbeat(self.name, self.session, state, number, step=int(now) if state != "idle" else 0)
            self._say(topics.heartbeat(self.card.run, self.name), envelope.encode(beat), False, 0)

    def offer(self, task: Task, manifest: messages.Manifest) -> None:
        offer = messages.Offer(manifest, task.run, task.round, task.attempt, task.work, task.submodel.name)
        self._say(topics.say(task.run, self.name), envelope.encode(offer), False, 1)

    def offer_again(self) -> None:
        """The other side may know nothing of what was under way."""
        if self.sender is not None and self.task is not None and self.waiting is not None:
            self.sender = Sender(self.sender.manifest, self.waiting)
            self.offer(self.task, self.sender.manifest)

    def send(self, now: float) -> None:
        if self.sender is None or self.card is None:
            return
        base = topics.upload(self.card.run, self.name, self.sender.manifest.transfer)
        for chunk in self.sender.due(now):
            self.sent_bytes += len(chunk.data)
            self._say(topics.chunk(base, chunk.index), envelope.encode(chunk), False, 1)

    def drop(self) -> None:
        """Gives up what it works on."""
        if self.base:
            self._listen(f"{self.base}/#", False)
        self.task = self.receiver = self.sender = self.waiting = None
        self.base, self.early = "", []


class Socket:
    """One agent's connection, driven by the fleet's loop."""

    def __init__(self, fleet: RawFleet, agent: str) -> None:
        self.fleet, self.name = fleet, agent
        self.agent = RawAgent(agent, self.say, self.listen, fleet.how)
        self.client = self._made()
        self.allowance, self.due, self.up = 0.0, 0.0, False
        self.delay = 0.5

    def _made(self) -> mqtt.Client:
        name = f"{self.fleet.run}-{self.name}"
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv311, clean_session=False)
        will = messages.Status(self.name, self.agent.session, False)
        client.will_set(topics.status(self.fleet.run, self.name), envelope.encode(will), qos=1, retain=True)
        client.on_connect = lambda c, u, flags, reason, p: self.connected(reason.is_failure)
        client.on_message = lambda c, u, message: self.heard(message.topic, bytes(message.payload))
        client.on_socket_open = lambda c, u, sock: self.fleet.watch(self, sock)
        client.on_socket_close = lambda c, u, sock: self.fleet.forget(self, sock)
        client.on_socket_register_write = lambda c, u, sock: self.fleet.wants(self, sock, write=True)
        client.on_socket_unregister_write = lambda c, u, sock: self.fleet.wants(self, sock, write=False)
        return client

    def connect(self) -> None:
        """Connects, or comes back later."""
        self.due = time.monotonic() + self.delay
        try:
            self.client.connect(*self.fleet.how.beside.get(self.name, self.fleet.address), keepalive=30)
        except OSError:
            self.delay = min(3.0, self.delay * 1.5)

    def connected(self, failed: bool) -> None:
        if not failed:
            self.up, self.delay = True, 0.5
            self.agent.linked(self.fleet.run)

    def heard(self, topic: str, payload: bytes) -> None:
        if not payload:
            return
        if (slow := self.fleet.how.slow.get(self.name)) is not None:
            self.allowance = max(self.allowance, time.monotonic()) + len(payload) / slow
            self.fleet.deaf(self)
        try:
            self.agent.hear(topic, payload, time.monotonic())
        except (WireError, Refused) as error:
            self.agent.refused.append(str(error))

    def say(self, topic: str, payload: bytes, retained: bool, qos: int) -> None:
        bend = self.fleet.how.bend
        for where, what in [(topic, payload)] if bend is None else bend(self.name, topic, payload):
            self.client.publish(where, what, qos=qos, retain=retained)

    def listen(self, pattern: str, wanted: bool) -> None:
        if wanted:
            self.client.subscribe(pattern, qos=1)
        else:
            self.client.unsubscribe(pattern)

    def cut(self) -> None:
        """Loses the connection without a word; the agent lives."""
        sock = self.client.socket()
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]  # it is a socket
            self.client.loop_read()

    def die(self) -> None:
        """Ends the agent's process, in effect: nothing is said, nothing is kept; another begins."""
        self.cut()
        self.agent.reborn()
        self.client = self._made()
        self.due = time.monotonic() + self.delay


class RawFleet:
    """Many raw agents of one run; `turn` drives them all, in the caller's thread."""

    def __init__(self, run: str, names: Sequence[str], address: tuple[str, int], how: Raw = Raw()) -> None:
        self.run, self.address, self.how = run, address, how
        self._selector = selectors.DefaultSelector()
        self.sockets = {name: Socket(self, name) for name in names}
        self._timers = [(0.0, name) for name in names]
        heapq.heapify(self._timers)

    @property
    def agents(self) -> list[RawAgent]:
        return [one.agent for one in self.sockets.values()]

    @property
    def connected(self) -> int:
        return sum(one.client.is_connected() for one in self.sockets.values())

    def turn(self, timeout: float) -> None:
        """Handles what comes within `timeout` seconds, and all that is due."""
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, name = heapq.heappop(self._timers)
            self._tick(self.sockets[name], now)
            heapq.heappush(self._timers, (now + TICK, name))
        wait = min(timeout, max(0.0, self._timers[0][0] - now)) if self._timers else timeout
        if not self._selector.get_map():
            time.sleep(wait)
            return
        for key, events in self._selector.select(wait):
            one: Socket = key.data
            if events & selectors.EVENT_READ:
                one.client.loop_read()
            if events & selectors.EVENT_WRITE:
                one.client.loop_write()

    def close(self) -> None:
        """Ends all connections."""
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

    # ---- sockets -------------------------------------------------------------------------------------------------------

    def watch(self, one: Socket, sock: Any) -> None:
        self._selector.register(sock, selectors.EVENT_READ, one)

    def forget(self, one: Socket, sock: Any) -> None:
        self._forget(sock)
        one.up = False

    def wants(self, one: Socket, sock: Any, *, write: bool) -> None:
        events = (0 if one.allowance else selectors.EVENT_READ) | (selectors.EVENT_WRITE if write else 0)
        self._forget(sock)
        if events:
            self._selector.register(sock, events, one)

    def deaf(self, one: Socket) -> None:
        """Leaves what comes for a slow agent in its socket for a while."""
        self.wants(one, one.client.socket(), write=one.client.want_write())

    def _forget(self, sock: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)
