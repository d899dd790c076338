"""An agent that speaks the whole protocol but does not train: its updates come from
`benchmarks.raw_agents.updates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.raw_agents.updates import CARD, Array, encode, learn, make_update
from federated.task import (
    Profile,
    Task,
    Timing,
    Update,
    heartbeat_interval,
    heartbeat_pause,
    is_heartbeat_due,
)
from federated.trainer_capabilities import CAPABILITIES
from federated.wire import envelope, messages, tensors, topics
from federated.wire.chunks import Receiver, Sender, split

__all__ = ["Alter", "Falsify", "Raw", "RawAgent"]

EARLY = 64  # chunks buffered until their manifest arrives
KEPT = 8  # weights that the agents of this process share

Alter = Callable[[str, str, bytes], Iterable[tuple[str, bytes]]]
"""Function from agent, topic and payload to the messages that the agent publishes instead."""
Falsify = Callable[[Update, dict[str, Array]], tuple[Update, dict[str, Array]]]
"""Function from an update's description and tensors to those that the agent sends instead."""


@dataclass(frozen=True)
class Raw:
    """Behaviour of a fleet of raw agents.

    delay: seconds that a training takes
    patience: seconds without a chunk until an agent asks for the weights again, and twice as long
        after that; many agents in one thread read theirs late
    chunk: bytes per chunk of an update
    addresses: name of an agent -> address that it connects to in place of the broker's
    slow: name of an agent -> bytes per second that it receives; others receive at full speed
    alter: functions that change published messages, one after the other
    falsify: name of an agent -> function that changes its updates
    certificates: name of an agent -> files of the authority's certificate, and of its own with key
    wildcards: False if agents must subscribe to each chunk of weights by its name
    """

    delay: float = 0.0
    patience: float = 5.0
    chunk: int = 64 << 10
    addresses: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    slow: Mapping[str, float] = field(default_factory=dict)
    alter: tuple[Alter, ...] = ()
    falsify: Mapping[str, Falsify] = field(default_factory=dict)
    certificates: Mapping[str, tuple[Path, Path]] = field(default_factory=dict)
    wildcards: bool = True


_kept = dict[str, dict[str, Array]]()  # by digest, the oldest first


def decode_weights(digest: str, blob: memoryview) -> dict[str, Array]:
    """Return the tensors of verified weights, which all agents of this process share."""
    if digest not in _kept:
        _kept[digest] = dict(tensors.decode(blob)[1])
        for old in list(_kept)[:-KEPT]:
            del _kept[old]
    return _kept[digest]


class RawAgent:
    """One agent. It publishes with `say`, and keeps its state when its link is lost. `restart`
    simulates a new process.
    """

    def __init__(
        self,
        name: str,
        say: Callable[[str, bytes, bool, int], None],
        listen: Callable[[str, bool], None],
        how: Raw,
    ) -> None:
        """Make an agent.

        say: called with topic, payload, retained, QoS
        listen: called with a pattern, and True to subscribe
        """
        self.name, self.how = name, how
        self._say, self._listen = say, listen
        self.card: messages.Run | None = None
        self.over = ""
        self.starts = 0
        self.accepted: dict[int, str] = {}  # sha256 of the accepted update, by round
        self.refused: list[str] = []
        self.progressed, self.patience = 0.0, how.patience
        self.sent_bytes = 0
        self.restart()

    def restart(self) -> None:
        """Reset the state, as if the process had been killed."""
        self.starts += 1
        self.session = f"{self.name}-{self.starts}"
        self.task: Task | None = None
        self.receiver: Receiver | None = None
        self.base = self.state = ""
        self.sender: Sender | None = None
        self.known: tuple[str, dict[str, Array]] | None = None
        self.beaten = self.ready_at = 0.0
        self.waiting: bytes | None = None  # the update, until its receipt arrives
        self.early: list[messages.Chunk] = []  # chunks before their manifest

    # ---- messages --------------------------------------------------------------------------------

    def on_connect(self, run: str) -> None:
        """Subscribe, and publish profile and status, after the link was made."""
        for pattern in topics.agent_patterns(run, self.name):
            self._listen(pattern, True)
        if self.base:
            self.listen_to_weights(True)
        if self.card is not None:
            self.introduce()
        self.offer_again()

    def handle(self, topic: str, payload: bytes, now: float) -> None:
        """Handle a message."""
        match envelope.decode(payload):
            case messages.Run() as card:
                self.handle_card(card)
            case Task() as task:
                self.handle_task(task, now)
            case messages.Manifest() | messages.Chunk() as message if (
                self.base and topic.startswith(self.base + "/")
            ):
                self.handle_weights(message, now)
            case messages.Grant() as grant if (
                self.sender is not None and grant.transfer == self.sender.manifest.transfer
            ):
                self.sender.take_grant(grant.have, grant.open, now)
                self.send()
            case messages.Receipt() as receipt:
                self.handle_receipt(receipt)
            case messages.Abort() as abort if self.task is not None and (
                self.task.round,
                self.task.attempt,
            ) <= (abort.round, abort.attempt):
                self.drop()
            case messages.Goodbye() as goodbye:
                self.over = goodbye.reason
                self.sign_off()
            case messages.Refusal() as refusal:
                self.refused.append(refusal.reason)
                if self.card is not None and refusal.about == topics.profile(
                    self.card.run, self.name
                ):
                    self.introduce()  # it was lost
            case _:
                pass

    def sign_off(self) -> None:
        """Clear the retained messages. The coordinator waits for this."""
        if self.card is None:
            return
        for topic in (
            topics.profile(self.card.run, self.name),
            topics.status(self.card.run, self.name),
        ):
            self._say(topic, b"", True, 1)

    def handle_card(self, card: messages.Run) -> None:
        """Store the run's card, and publish the profile if the run changed."""
        known, self.card = self.card, card
        if card.network is not None and (
            known is None or (known.session, known.network) != (card.session, card.network)
        ):
            self.introduce()
            self.offer_again()

    def introduce(self) -> None:
        """Publish profile and status."""
        assert self.card is not None
        run = self.card.run
        self._say(topics.profile(run, self.name), envelope.encode(self.make_profile()), True, 1)
        self._say(
            topics.status(run, self.name),
            envelope.encode(messages.Status(self.name, self.session, True)),
            True,
            1,
        )

    def make_profile(self) -> Profile:
        """Return a profile for the run's card."""
        assert self.card is not None
        timings = tuple(
            Timing(submodel, self.card.batch, 0.001) for submodel in self.card.calibration
        )
        return Profile(
            self.name,
            "raw",
            "raw",
            1.0,
            4 << 30,
            1e8,
            256 << 10,
            "torch",
            CARD,
            timings,
            capabilities=tuple(CAPABILITIES),
            protocol=envelope.PROTOCOL,
        )

    def handle_task(self, task: Task, now: float) -> None:
        """Begin a task, unless it repeats the present one or is older."""
        if task.work != "train":
            return
        if self.task is not None:
            # a coordinator that lost a round asks for it again, in a later attempt
            known, asked = (self.task.attempt, self.task.round), (task.attempt, task.round)
            moved = self.base and self.base != topics.model(task.run, task.slot, task.submodel.name)
            if asked < known or (
                asked == known and not moved and (self.base or self.waiting is not None)
            ):
                return
        self.drop()
        self.task, self.progressed, self.patience = task, now, self.how.patience
        if self.known is not None and self.known[0] == task.digest:
            self.train(task, now)
            return
        self.base = topics.model(task.run, task.slot, task.submodel.name)
        self.listen_to_weights(True)

    def listen_to_weights(self, wanted: bool) -> None:
        """Subscribe to the weights of the task, as far as their names are known, or unsubscribe."""
        manifest = self.receiver.manifest if self.receiver is not None else None
        patterns = (
            [f"{self.base}/#"]
            if self.how.wildcards
            else [
                topics.manifest(self.base),
                *(topics.chunk(self.base, i) for i in range(manifest.total if manifest else 0)),
            ]
        )
        for pattern in patterns:
            self._listen(pattern, wanted)

    def handle_weights(self, message: messages.Manifest | messages.Chunk, now: float) -> None:
        """Receive a part of the weights, and train once they are complete."""
        task = self.task
        if task is None:
            return
        if isinstance(message, messages.Manifest):
            if message.sha256 == task.digest and (
                self.receiver is None or self.receiver.manifest != message
            ):
                self.receiver = Receiver(message, limit=task.size)
                if not self.how.wildcards:
                    self.listen_to_weights(True)
            early, self.early = self.early, []
            for chunk in early:
                self.handle_weights(chunk, now)
            return
        if self.receiver is None:
            self.early = [*self.early, message][-EARLY:]
            return
        if message.transfer != self.receiver.manifest.transfer:
            return
        if self.receiver.take(message, now):
            self.progressed, self.patience = now, self.how.patience
        if self.receiver.complete:
            blob = self.receiver.verify()
            self.listen_to_weights(False)
            self.receiver, self.base = None, ""
            self.known = task.digest, decode_weights(task.digest, blob)
            self.train(task, now)

    def handle_receipt(self, receipt: messages.Receipt) -> None:
        """Record whether the update was accepted."""
        if (
            self.sender is None
            or self.task is None
            or receipt.transfer != self.sender.manifest.transfer
        ):
            return
        if receipt.accepted:
            self.accepted[self.task.round] = self.sender.manifest.sha256
        else:
            self.refused.append(receipt.reason)
        self.sender = self.waiting = None

    # ---- actions ---------------------------------------------------------------------------------

    def train(self, task: Task, now: float) -> None:
        """Compute an update, to be offered after `delay` seconds."""
        assert self.known is not None
        update = make_update(
            task.run, task.round, task.attempt, self.name, task.submodel, task.version
        )
        values = learn(self.known[1], self.name, task.round)
        if (falsify := self.how.falsify.get(self.name)) is not None:
            update, values = falsify(update, values)
        self.waiting, self.ready_at = encode(update, values), now + self.how.delay
        self.tick(now)

    def tick(self, now: float) -> None:
        """Offer the update, send chunks, repeat subscriptions and send heartbeats that are due."""
        if self.card is None or self.over:
            return
        if (
            self.waiting is not None
            and self.task is not None
            and self.sender is None
            and now >= self.ready_at
        ):
            manifest = split(self.waiting, self.how.chunk, self.task.transfer)
            self.sender = Sender(manifest, self.waiting, now)
            self.offer(self.task, manifest)
        if self.sender is not None and self.task is not None and self.sender.check_stall(now):
            self.offer(self.task, self.sender.manifest)
        self.send()
        if self.base and now - self.progressed > self.patience:
            self.progressed, self.patience = now, 2 * self.patience
            self.listen_to_weights(False)
            self.listen_to_weights(True)
        state = (
            "send"
            if self.sender is not None
            else "train"
            if self.waiting is not None
            else "download"
            if self.base
            else "idle"
        )
        lease = self.task.lease if self.task is not None and state != "idle" else 0.0
        least = self.card.heartbeat
        if (
            is_heartbeat_due(self.name, self.beaten, now, heartbeat_interval(lease, least))
            if state == self.state
            else now - self.beaten > heartbeat_pause(least)
        ):
            self.beaten, self.state = now, state
            number = self.task.round if self.task is not None else 0
            beat = messages.Heartbeat(
                self.name, self.session, state, number, step=int(now) if state != "idle" else 0
            )
            self._say(topics.heartbeat(self.card.run, self.name), envelope.encode(beat), False, 0)

    def offer(self, task: Task, manifest: messages.Manifest) -> None:
        offer = messages.Offer(
            manifest, task.run, task.round, task.attempt, task.work, task.submodel.name
        )
        self._say(topics.say(task.run, self.name), envelope.encode(offer), False, 1)

    def offer_again(self) -> None:
        """Offer the present update again, in case the coordinator lost it."""
        if self.sender is not None and self.task is not None and self.waiting is not None:
            self.sender.restart()
            self.offer(self.task, self.sender.manifest)

    def send(self) -> None:
        """Send the chunks that the coordinator is ready for."""
        if self.sender is None or self.card is None:
            return
        base = topics.upload(self.card.run, self.name, self.sender.manifest.transfer)
        for chunk in self.sender.next_chunks():
            self.sent_bytes += len(chunk.data)
            self._say(topics.chunk(base, chunk.index), envelope.encode(chunk), False, 1)

    def drop(self) -> None:
        """Abandon the present task."""
        if self.base:
            self.listen_to_weights(False)
        self.task = self.receiver = self.sender = self.waiting = None
        self.base, self.early = "", []
