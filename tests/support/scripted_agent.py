"""An agent's side of the protocol, driven by a test, to talk to a fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np
from msgspec import structs

from coordinator.fleet.message_loop import MessageLoop
from coordinator.round.collector_interface import Snapshot
from coordinator.round.round_events import CardChanged, PhaseBegan
from coordinator.round.task_state import Planned, TaskState
from federated.task import Profile, Recipe, Task, Timing, Update
from federated.wire import envelope, messages, tensors, topics
from federated.wire.chunks import slices, split
from federated.wire.links.memory import MemoryBroker, MemoryLink
from models.submodel_building import shapes
from tests.support.scripted_coordinator import DATA, SMALL

__all__ = [
    "PROFILE",
    "Folding",
    "ScriptedAgent",
    "begin_phase",
    "collect",
    "forget_profile",
    "list_tasks",
    "listen",
    "run_turns",
    "task",
    "weights",
]

PROFILE = Profile("a", "h", "s", 1.0, 10**9, 1e6, 2**18, "torch", DATA, (Timing(SMALL, 32, 0.01),))


class ScriptedAgent:
    """The agent's end of a link, without a device."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self.name, self.link = name, MemoryLink(broker, name)
        self.link.subscribe(topics.command("r", name))
        self.say(messages.Status(name, "s1", True), topics.status("r", name))
        self.say(replace(PROFILE, agent=name), topics.profile("r", name))

    def say(self, message: messages.Message, topic: str | None = None) -> None:
        self.link.publish(
            topic or topics.say("r", self.name),
            envelope.encode(message),
            retain=topic is not None and topic.endswith(("status", "profile")),
        )

    def beat(self, state: str = "idle") -> None:
        self.say(messages.Heartbeat(self.name, "s1", state, 1), topics.heartbeat("r", self.name))

    def heard(self) -> list[messages.Message]:
        found = []
        while (delivery := self.link.receive(0)) is not None:
            if not delivery.topic.startswith("$"):
                found.append(envelope.decode(delivery.payload))
        return found

    def send(
        self, task: Task, values: dict[str, np.ndarray], transfer: str = "t", **fields: object
    ) -> None:
        """Send a whole update: the offer and all chunks, without waiting for a grant."""
        offer, chunks = self.make_update(task, values, transfer, **fields)
        self.say(offer)
        self.send_chunks(offer, chunks)

    def send_chunks(self, offer: messages.Offer, chunks: Sequence[messages.Chunk]) -> None:
        for chunk in chunks:
            base = topics.upload("r", self.name, offer.manifest.transfer)
            self.say(chunk, topics.chunk(base, chunk.index))

    def make_update(
        self, task: Task, values: dict[str, np.ndarray], transfer: str = "t", **fields: object
    ) -> tuple[messages.Offer, list[messages.Chunk]]:
        """Return the offer and the chunks of an update."""
        made = Update(
            "r",
            task.round,
            task.attempt,
            self.name,
            task.work,
            task.submodel,
            task.version,
            10,
            1,
            {},
            {"labels": [1], "loss": 1.0},
        )
        made = replace(made, **fields)  # type: ignore[arg-type]
        data = memoryview(bytes(tensors.encode(msgspec.to_builtins(made), values)))
        manifest = split(data, 2**18, transfer)
        offer = messages.Offer(
            manifest, "r", task.round, task.attempt, task.work, task.submodel.name
        )
        return offer, list(slices(manifest, data))


def listen(fleet: MessageLoop) -> None:
    for _ in range(200):
        fleet.turn(0)


def run_turns(fleet: MessageLoop, steps: list[Callable[[], None]]) -> None:
    """Run one function in each turn of the coordinator."""
    original = fleet.turn

    def turn(timeout: float) -> None:
        for _ in range(20):
            original(0)
        if steps:
            steps.pop(0)()

    fleet.turn = turn  # type: ignore[method-assign]


def task(name: str, work: str = "train") -> Task:
    return Task("r", 1, 1, name, work, SMALL, "r0", "0" * 64, 1000, Recipe(), 60.0)  # type: ignore[arg-type]


class Folding:
    """Collects updates of at most a megabyte, in the order in which they are folded. spares: tasks
    of agents that may replace others.
    """

    def __init__(
        self, check: Callable[[Task, Update], None] = lambda task, update: None, spares: str = ""
    ) -> None:
        self.updates: list[Update] = []
        self.asked: list[str] = []
        self.snapshots = 0
        self.spares, self._check = spares, check

    def limit(self, task: Task) -> int:
        return 10**6

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        self._check(task, update)

    def fold(self, state: TaskState, update: Update) -> None:
        self.updates.append(update)

    def prepare(self, agent: str) -> Planned:
        self.asked.append(agent)
        return Planned(task(agent))

    def settle(self) -> None:
        return None

    def snapshot(self) -> Snapshot | None:
        self.snapshots += 1
        return None


def begin_phase(
    fleet: MessageLoop, tasks: Sequence[Task | Planned], **settings: object
) -> PhaseBegan:
    """Begin a phase of ten minutes that waits for all of its tasks, unless the settings differ."""
    planned = tuple(one if isinstance(one, Planned) else Planned(one) for one in tasks)
    work, round = planned[0].task.work, max(one.task.round for one in planned)
    made = PhaseBegan(fleet.clock(), work, round, planned, 600.0, len(planned))
    return structs.replace(made, **settings)


def collect(
    fleet: MessageLoop,
    tasks: Sequence[Task | Planned],
    collector: Folding | None = None,
    **settings: object,
) -> list[Update]:
    """Run a phase. Return the updates in the order in which they were folded."""
    collector = collector or Folding()
    fleet.run_phase(begin_phase(fleet, tasks, **settings), collector)
    return collector.updates


def list_tasks(fleet: MessageLoop) -> dict[str, TaskState]:
    """Return the present phase's tasks by agent."""
    return {state.task.agent: state for state in fleet.tasks}


def forget_profile(fleet: MessageLoop) -> None:
    """Forget the profiles of all agents."""
    fleet.driver.handle(CardChanged(fleet.clock()))


def weights(value: float = 1.0) -> dict[str, np.ndarray]:
    return {name: np.full(shape, value, np.float32) for name, shape in shapes(SMALL).items()}
