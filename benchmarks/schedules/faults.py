"""Schedules: what a seed draws, the fleet, its settings, and what breaks when."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CHARACTERS", "COORDINATOR", "DEATHS", "KINDS", "Fault", "Schedule", "draw"]

COORDINATOR = "coordinator"
# a process ends before an action; what its disk lost is seen when it starts again
DEATHS = "bit", "kill", "power"
CHARACTERS = "drip", "liar", "mute"
HEAL = 240.0  # seconds: no fault that is drawn by time begins later


@dataclass(frozen=True)
class Fault:
    """Something that breaks.

    kind: one of KINDS. who: the process, where it is of one.
    at: seconds at which it begins; of a kill, the action of the process before which it happens.
    lasts: seconds, or until the process is started again. much: a share, or seconds of a delay or a
    jump.
    """

    kind: str
    who: str = ""
    at: float = 0.0
    lasts: float = 0.0
    much: float = 0.0


Draw = Callable[[random.Random, list[str]], Fault]
"""Draws a fault of one kind. Its arguments: the randomness, and the names of the agents."""


@dataclass(frozen=True)
class Schedule:
    """seed: of all that is drawn while it runs. paces: seconds that a task takes, by agent.
    settings: of the run's configuration.
    """

    seed: int
    paces: Mapping[str, float]
    settings: Mapping[str, Any]
    faults: tuple[Fault, ...] = field(default=())


def window(kind: str) -> Draw:
    """A stretch of time in which messages to or from one process suffer."""

    def draw(rng: random.Random, names: list[str]) -> Fault:
        return Fault(
            kind,
            rng.choice([COORDINATOR, *names]),
            rng.uniform(0, HEAL),
            rng.uniform(1, 30),
            rng.choice((0.05, 0.2, 0.6)),
        )

    return draw


def process(kind: str, shortest: float, longest: float) -> Draw:
    """Something that happens to a process at a time."""

    def draw(rng: random.Random, names: list[str]) -> Fault:
        who, at, lasts = (
            rng.choice([COORDINATOR, *names]),
            rng.uniform(0, HEAL),
            rng.uniform(shortest, longest),
        )
        return Fault(kind, who, at, lasts, rng.choice((-1e5, -30.0, 30.0, 1e5)))

    return draw


def death(kind: str) -> Draw:
    """The end of a process before one of its actions, early ones and those of its second life
    included.
    """

    def draw(rng: random.Random, names: list[str]) -> Fault:
        coordinator = rng.random() < 0.6
        who = COORDINATOR if coordinator else rng.choice(names)
        most = 3000 if coordinator else 1500
        return Fault(
            kind, who, float(int(most ** rng.uniform(0.2, 1.0))), rng.choice((0.1, 2.0, 20.0, 70.0))
        )

    return draw


def broker(kind: str) -> Draw:
    def draw(rng: random.Random, names: list[str]) -> Fault:
        return Fault(kind, "", rng.uniform(0, HEAL), rng.uniform(0.1, 20.0), rng.random())

    return draw


def character(kind: str) -> Draw:
    """How an agent behaves from the beginning; the first one is always honest."""

    def draw(rng: random.Random, names: list[str]) -> Fault:
        return Fault(kind, rng.choice(names[1:]), 0.0, 0.0, rng.random())

    return draw


KINDS: dict[str, Draw] = {
    "lose": window("lose"),
    "double": window("double"),
    "delay": window("delay"),
    "reorder": window("reorder"),
    "damage": window("damage"),
    "cut": process("cut", 1, 80),
    "cut in": process("cut in", 1, 40),
    "cut out": process("cut out", 1, 40),
    "broker restart": broker("broker restart"),
    "broker forgets": broker("broker forgets"),
    "retained lost": broker("retained lost"),
    "disk full": process("disk full", 1, 60),
    "clock": process("clock", 0, 0),
    "pause": process("pause", 1, 120),
    "kill": death("kill"),
    "power": death("power"),
    "bit": death("bit"),
    "mute": character("mute"),
    "drip": character("drip"),
    "liar": character("liar"),
    "namesake": process("namesake", 5, 60),
    "two coordinators": broker("two coordinators"),
}


METHODS: tuple[dict[str, Any], ...] = (
    {"method.name": "heterofl"},
    {"method.name": "fedavg"},
    {"method.name": "fedrolex"},
    {"method.name": "fedfa", "method.choice": "zico"},  # surveys its devices
)


def draw(seed: int) -> Schedule:
    """The schedule of a seed."""
    rng = random.Random(seed)  # noqa: S311  # no secret
    names = [f"a{index}" for index in range(rng.randint(2, 6))]
    paces = {name: rng.choice((0.2, 2.0, 8.0, 25.0)) for name in names}
    count = rng.choices((0, 1, 2, 3, 4, 5, 6, 8, 10), (1, 1, 2, 4, 5, 4, 3, 2, 1))[0]
    kinds = list(KINDS)
    faults = tuple(KINDS[rng.choice(kinds)](rng, names) for _ in range(count))
    # one that lies may be turned away
    honest = len(names) - len({fault.who for fault in faults if fault.kind == "liar"})
    buffered = rng.random() < 0.3
    settings: dict[str, Any] = {
        **rng.choice(METHODS),
        "rounds": rng.choice((3, 3, 4)),
        "evaluate.every": rng.choice((1, 2, 3)),
        "evaluate.between": rng.random() < 0.3,
        "evaluate.local": rng.random() < 0.5,
        "fleet.mode": "buffered" if buffered else "sync",
        "fleet.min_agents": rng.randint(1, honest),
        "fleet.fraction": rng.choice((0.5, 1.0, 1.0)),
        "fleet.over": rng.choice((0.0, 0.0, 0.5)),
        "fleet.quorum": rng.choice((0.6, 1.0, 1.0)),
        "fleet.late": rng.choice(("take", "drop")),
        "fleet.deadline": rng.choice((0.0, 0.0, 120.0)),
        "journal.every": rng.choice((1, 2, 5)),
        "journal.waiting": rng.choice((1, 3, 64)),
        "wire.slots": rng.choice((1, 2, 8)),
    }
    return Schedule(seed, paces, settings, faults)
