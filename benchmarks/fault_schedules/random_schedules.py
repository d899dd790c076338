"""Draw a schedule from a seed: the fleet, its settings, and its faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

__all__ = ["CHARACTERS", "COORDINATOR", "DEATHS", "KINDS", "Fault", "Schedule", "draw"]

COORDINATOR = "coordinator"
# the process dies before an action; the damage to its disk shows at its restart
DEATHS = "bit", "kill", "power"
CHARACTERS = "drip", "liar", "mute"
HEAL = 240.0  # seconds; faults with a start time begin before


@dataclass(frozen=True)
class Fault:
    """A fault.

    kind: one of KINDS
    who: its process, if it has one
    at: start in seconds; for a death, the number of the action before which the process dies
    lasts: seconds, or those until the process restarts
    much: fraction, or seconds of a delay or a jump
    """

    kind: str
    who: str = ""
    at: float = 0.0
    lasts: float = 0.0
    much: float = 0.0


Draw = Callable[[str, random.Random, list[str]], Fault]
"""Function that draws a fault, from its kind, a generator and the names of the agents."""


@dataclass(frozen=True)
class Schedule:
    """A fleet with its faults.

    seed: of everything drawn while it runs
    paces: seconds of a task, by agent
    settings: of the run's configuration
    faults: that happen
    """

    seed: int
    paces: Mapping[str, float]
    settings: Mapping[str, Any]
    faults: tuple[Fault, ...] = field(default=())


def disturb_messages(kind: str, rng: random.Random, names: list[str]) -> Fault:
    """Return a fault that disturbs messages to or from one process for a while."""
    return Fault(
        kind,
        rng.choice([COORDINATOR, *names]),
        rng.uniform(0, HEAL),
        rng.uniform(1, 30),
        rng.choice((0.05, 0.2, 0.6)),
    )


def disturb_process(
    kind: str, rng: random.Random, names: list[str], shortest: float, longest: float
) -> Fault:
    """Return a fault of a process at a point in time."""
    return Fault(
        kind,
        rng.choice([COORDINATOR, *names]),
        rng.uniform(0, HEAL),
        rng.uniform(shortest, longest),
        rng.choice((-1e5, -30.0, 30.0, 1e5)),
    )


def end_process(kind: str, rng: random.Random, names: list[str]) -> Fault:
    """Return the death of a process before one of its actions, which may be early or after a
    restart.
    """
    coordinator = rng.random() < 0.6
    who = COORDINATOR if coordinator else rng.choice(names)
    most = 3000 if coordinator else 1500
    return Fault(
        kind, who, float(int(most ** rng.uniform(0.2, 1.0))), rng.choice((0.1, 2.0, 20.0, 70.0))
    )


def disturb_broker(kind: str, rng: random.Random, names: list[str]) -> Fault:
    """Return a fault of the broker."""
    return Fault(kind, "", rng.uniform(0, HEAL), rng.uniform(0.1, 20.0), rng.random())


def choose_character(kind: str, rng: random.Random, names: list[str]) -> Fault:
    """Return a permanent behaviour of an agent; the first agent is always honest."""
    return Fault(kind, rng.choice(names[1:]), 0.0, 0.0, rng.random())


KINDS: dict[str, Draw] = {
    "lose": disturb_messages,
    "double": disturb_messages,
    "delay": disturb_messages,
    "reorder": disturb_messages,
    "damage": disturb_messages,
    "cut": partial(disturb_process, shortest=1, longest=80),
    "cut in": partial(disturb_process, shortest=1, longest=40),
    "cut out": partial(disturb_process, shortest=1, longest=40),
    "broker restart": disturb_broker,
    "broker forgets": disturb_broker,
    "retained lost": disturb_broker,
    "disk full": partial(disturb_process, shortest=1, longest=60),
    "clock": partial(disturb_process, shortest=0, longest=0),
    "pause": partial(disturb_process, shortest=1, longest=120),
    "kill": end_process,
    "power": end_process,
    "bit": end_process,
    "mute": choose_character,
    "drip": choose_character,
    "liar": choose_character,
    "namesake": partial(disturb_process, shortest=5, longest=60),
    "two coordinators": disturb_broker,
}


METHODS: tuple[dict[str, Any], ...] = (
    {"method.name": "heterofl"},
    {"method.name": "fedavg"},
    {"method.name": "fedrolex"},
    {"method.name": "fedfa", "method.choice": "zico"},  # with a survey
)


def draw(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    rng = random.Random(seed)  # noqa: S311  # no secret
    names = [f"a{index}" for index in range(rng.randint(2, 6))]
    paces = {name: rng.choice((0.2, 2.0, 8.0, 25.0)) for name in names}
    count = rng.choices((0, 1, 2, 3, 4, 5, 6, 8, 10), (1, 1, 2, 4, 5, 4, 3, 2, 1))[0]
    kinds = list(KINDS)
    drawn = (rng.choice(kinds) for _ in range(count))  # one at a time, between the faults
    faults = tuple(KINDS[kind](kind, rng, names) for kind in drawn)
    # the coordinator may reject liars
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
        "wire.codec": rng.choice(("raw", "raw", "int8")),
    }
    return Schedule(seed, paces, settings, faults)
