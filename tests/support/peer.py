"""An agent made of nothing but its link, and rounds in which tests speak through it to a fleet, by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import numpy as np

from coordinator.collection import Collection, unchecked
from coordinator.fleet import Fleet
from coordinator.openings import missing
from federated.task import Profile, Recipe, Task, Timing, Update
from federated.wire import envelope, messages, tensors, topics
from federated.wire.chunks import slices, split
from federated.wire.memory import MemoryBroker, MemoryLink
from models.families import shapes
from tests.support.clerk import DATA, SMALL

__all__ = ["PROFILE", "Peer", "asking", "collecting", "listen", "task", "turning", "weights"]

PROFILE = Profile("a", "h", "s", 1.0, 10**9, 1e6, 2**18, "torch", DATA, (Timing(SMALL, 32, 0.01),))


class Peer:
    """An agent made of nothing but its link."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self.name, self.link = name, MemoryLink(broker, name)
        self.link.subscribe(topics.command("r", name))
        self.say(messages.Status(name, "s1", True), topics.status("r", name))
        self.say(replace(PROFILE, agent=name), topics.profile("r", name))

    def say(self, message: messages.Message, topic: str | None = None) -> None:
        self.link.publish(
            topic or topics.say("r", self.name), envelope.encode(message), retain=topic is not None and topic.endswith(("status", "profile"))
        )

    def beat(self, state: str = "idle") -> None:
        self.say(messages.Heartbeat(self.name, "s1", state, 1), topics.heartbeat("r", self.name))

    def heard(self) -> list[messages.Message]:
        found = []
        while (delivery := self.link.receive(0)) is not None:
            if not delivery.topic.startswith("$"):
                found.append(envelope.decode(delivery.payload))
        return found

    def send(self, task: Task, values: dict[str, np.ndarray], transfer: str = "t", **fields: object) -> None:
        """A whole update: the offer and all chunks, without waiting for a grant."""
        made = Update("r", task.round, task.attempt, self.name, task.work, task.submodel, task.version, 10, 1, {}, {"labels": [1], "loss": 1.0})
        made = replace(made, **fields)  # type: ignore[arg-type]
        data = memoryview(bytes(tensors.encode(msgspec.to_builtins(made), values)))
        manifest = split(data, 2**18, transfer)
        self.say(messages.Offer(manifest, "r", task.round, task.attempt, task.work, task.submodel.name))
        for chunk in slices(manifest, data):
            self.say(chunk, topics.chunk(topics.upload("r", self.name, transfer), chunk.index))


def listen(fleet: Fleet) -> None:
    for _ in range(200):
        fleet.turn(0)


def turning(fleet: Fleet, steps: list[Callable[[], None]]) -> None:
    """Has something happen in each of the coordinator's turns, one after the other."""
    original = fleet.turn

    def turn(timeout: float) -> None:
        for _ in range(20):
            original(0)
        if steps:
            steps.pop(0)()

    fleet.turn = turn  # type: ignore[method-assign]


def task(name: str, work: str = "train") -> Task:
    return Task("r", 1, 1, name, work, SMALL, "r0", "0" * 64, 1000, Recipe(), 60.0)  # type: ignore[arg-type]


def collecting(fleet: Fleet, names: str, work: str = "train", check: object = None) -> Iterator[object]:
    tasks = [task(name, work) for name in names]
    check = check or (lambda task, update: None)
    return fleet.collect(tasks, quorum=len(tasks), deadline=600, check=check, size=lambda task: 10**6)  # type: ignore[arg-type]


def asking(fleet: Fleet, names: str, lease: float = 0.0, besides: str = "") -> tuple[Iterator[object], list[str]]:
    """A round of some agents with a lease, in which others are asked for each that is missing; who was asked so."""
    asked: list[str] = []

    def more(collection: Collection) -> list[Task]:
        found = [name for name in besides if name not in asked][: max(0, missing(collection, len(names)))]
        asked.extend(found)
        return [task(name) for name in found]

    tasks = [replace(task(name), lease=lease) for name in names]
    return fleet.collect(tasks, quorum=len(names), deadline=600, check=unchecked, size=lambda task: 10**6, more=more), asked


def weights(value: float = 1.0) -> dict[str, np.ndarray]:
    return {name: np.full(shape, value, np.float32) for name, shape in shapes(SMALL).items()}
