"""The coordinator's side of the protocol, driven by a test, to talk to an agent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from federated.device.agent_event_loop import AgentEventLoop, Equipment
from federated.device.agent_run_files import Spool
from federated.device.task_runner_interface import Outcome
from federated.task import Card, Profile, Recipe, Task, Timing
from federated.wire import envelope, messages, topics
from federated.wire.chunks import Receiver, split
from federated.wire.link import Delivery
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.retained_blobs import publish
from models.menu import menu
from models.named_network import network
from tests.support.manual_clock import Clock

RUN, AGENT = "r", "a"
NETWORK = network("preresnet", (1, 8, 8), 10)
(SMALL,) = menu(NETWORK, (0.5,), (2,))
DATA = Card("digits", (1, 8, 8), "uint8", 10, 100, 20, (5.0,), (6.0,))
CARD = messages.Run(RUN, "fedfa", "preresnet", NETWORK, (SMALL,), 32, "s1")
CHUNK = 1024


def profile(run: messages.Run) -> Profile:
    return Profile(
        AGENT, "h", "s", 1.0, 10**9, 1e6, 2**18, "torch", DATA, (Timing(SMALL, 32, 0.01),)
    )


def task(
    round: int = 1,
    attempt: int = 1,
    work: str = "train",
    *,
    weights: bytes = bytes(3000),
    version: str = "v",
) -> Task:
    made = Task(
        RUN,
        round,
        attempt,
        AGENT,
        "train",
        SMALL,
        version,
        split(weights, CHUNK, "w").sha256,
        len(weights),
        Recipe(),
        60.0,
    )
    return replace(made, work=work)  # type: ignore[arg-type]


@dataclass
class Hand:
    """A trainer controlled by the test: `end` is the outcome of the present task."""

    task: Task | None = None
    result: Path | None = None
    begun: list[Task] = field(default_factory=list)
    ready: Outcome | None = None
    progress: tuple[int, int] = (0, 0)

    def begin(self, task: Task, weights: Path, result: Path) -> None:
        assert weights.stat().st_size == task.size
        self.task, self.result = task, result
        self.begun.append(task)

    def poll(self) -> Outcome | None:
        outcome, self.ready = self.ready, None
        return outcome

    def cancel(self) -> None:
        self.task = self.ready = None

    def end(self, update: bytes = b"", reason: str = "") -> None:
        assert self.task is not None
        assert self.result is not None
        if update:
            self.result.write_bytes(update)
        self.ready = Outcome(self.task, self.result if update else None, reason)


class ScriptedCoordinator:
    """The coordinator's end.

    said: the agent's messages on its `say` topic
    epoch: of its messages
    """

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker, self.link = broker, MemoryLink(broker, "coordinator")
        self.said: list[messages.Message] = []
        self.epoch = 0
        self.statuses: list[messages.Status] = []
        self.receivers: dict[str, Receiver] = {}
        self.chunks: list[tuple[str, int]] = []  # as they came: transfer, index
        for pattern in topics.coordinator_patterns(RUN):
            self.link.subscribe(pattern)

    def shelve(self, weights: bytes, version: str = "v") -> None:
        publish(
            self.link,
            topics.model(RUN, "0", SMALL.name),
            split(weights, CHUNK, f"{version}-w"),
            memoryview(weights),
        )

    def tell(self, message: messages.Message) -> None:
        self.link.publish(topics.command(RUN, AGENT), envelope.encode(message, self.epoch))

    def hear(self) -> list[messages.Message]:
        """Return the agent's messages since the last call."""
        new: list[messages.Message] = []
        while (delivery := self.link.receive(0)) is not None:
            new += self._heard(delivery)
        self.said += new
        return new

    def grant(self, offer: messages.Offer) -> None:
        """Allow the agent to send."""
        receiver = self.receivers.setdefault(
            offer.manifest.transfer, Receiver(offer.manifest, limit=1 << 20)
        )
        self.tell(messages.Grant(offer.manifest.transfer, receiver.acknowledge(), True))

    def receipt(self, of: Task, reason: str = "") -> None:
        self.tell(messages.Receipt(of.transfer, not reason, reason))

    def _heard(self, delivery: Delivery) -> list[messages.Message]:
        if not delivery.payload or delivery.topic.startswith("$"):
            return []
        message = envelope.decode(delivery.payload)
        match message:
            case messages.Chunk() as chunk:
                self.chunks.append((chunk.transfer, chunk.index))
                self.receivers[chunk.transfer].take(chunk, 0.0)
            case messages.Status() as status:
                self.statuses.append(status)
            case messages.Offer() | messages.Failure():
                return [message]
        return []


def open_spool(folder: Path) -> Spool:
    return Spool(folder, lasting=True)


class Agent:
    """A participant with a coordinator, trainer and clock that the test controls. fetched: chunks
    of weights that it received.
    """

    def __init__(
        self,
        spool: Path | Spool,
        clerk: ScriptedCoordinator | None = None,
        session: str = "s1",
        run: messages.Run = CARD,
    ) -> None:
        self.clerk = clerk or ScriptedCoordinator(MemoryBroker())
        self.clock, self.hand, self.spool = (
            Clock(),
            Hand(),
            spool if isinstance(spool, Spool) else open_spool(spool),
        )
        self.link, self.fetched = MemoryLink(self.clerk.broker, AGENT), 0
        self.clerk.broker.tamper = self._count
        self.measured: list[messages.Run] = []
        self.participant = AgentEventLoop(
            self.link,
            run,
            AGENT,
            session,
            Equipment(self.measure, self.hand, self.spool, clock=self.clock),
        )
        self.participant.join()

    def measure(self, run: messages.Run) -> Profile:
        self.measured.append(run)
        return profile(run)

    def turn(self) -> list[messages.Message]:
        """Handle all deliveries. Return the agent's messages."""
        for _ in range(50):
            self.participant.turn(0)
        return self.clerk.hear()

    def ask(self, of: Task) -> list[messages.Message]:
        self.clerk.tell(of)
        return self.turn()

    def work(self, of: Task, update: bytes = b"u" * 3000) -> list[messages.Message]:
        """Perform a task up to its offer."""
        self.clerk.shelve(bytes(3000))
        self.ask(of)
        self.hand.end(update)
        return self.turn()

    def stop(self) -> ScriptedCoordinator:
        """End as a killed process. Return its coordinator."""
        self.link.kill()
        self.spool.close()
        return self.clerk

    def _count(self, delivery: Delivery) -> list[Delivery]:
        self.fetched += "/model/" in delivery.topic
        return [delivery]
