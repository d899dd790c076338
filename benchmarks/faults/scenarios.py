"""What is broken: each scenario prepares a trial, and breaks it at an instant that the trial's seed
draws.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from benchmarks.faults.places import link, small_disk
from benchmarks.faults.proxy import Proxy
from benchmarks.faults.real import agent_disk_full, agent_killed
from benchmarks.faults.trial import AGENTS, ROUNDS, Trial, later
from benchmarks.raw.agent import Raw

__all__ = ["MOSQUITTO_ONLY", "SCENARIOS", "Scenario"]

Scenario = Callable[[Trial], None]

SHARE = 0.01  # of the chunks that are damaged, doubled or reordered
# bytes per second of the slow link; seconds each way, 300 ms there and back
RATE, DELAY = 1_000_000, 0.150
CHUNKS = 20  # of an update
PACE = 0.5  # seconds of a training, where the instant is one of the clock,
LASTING = ROUNDS * PACE  # so that the rounds last at least so long


# ---- the coordinator -----------------------------------------------------------------------------


def fused(stage: str, when: str, times: int) -> Scenario:
    """kill -9 of the coordinator at one of the first `times` times of a stage."""

    def prepare(trial: Trial) -> None:
        trial.fuse = (stage, when, str(trial.rng.randint(1, times)), f"{trial.rng.random():.3f}")

    return prepare


def at_any_moment(trial: Trial) -> None:
    """kill -9 of the coordinator at a moment of its three rounds."""
    trial.how = Raw(delay=PACE)

    def strike() -> None:
        trial.coordinator.kill()
        trial.strike()

    later(trial, strike, trial.rng.uniform(0, LASTING))


# ---- the broker, the agents ----------------------------------------------------------------------


def broker_killed(*, persistent: bool) -> Scenario:
    """kill -9 of the broker, which is back after up to a second; without persistence it knows
    nothing of before.
    """

    def prepare(trial: Trial) -> None:
        trial.persistent, trial.how = persistent, Raw(delay=PACE)
        away = trial.rng.uniform(0, 1.0)
        back = {"due": 0.0}

        def strike() -> None:
            trial.broker.kill()
            trial.strike()
            back["due"] = time.monotonic() + away

        later(trial, strike, trial.rng.uniform(0, LASTING))
        inner = trial.each

        def each() -> None:
            inner()
            if back["due"] and time.monotonic() >= back["due"]:
                back["due"] = 0.0
                trial.broker.start()

        trial.each = each

    return prepare


def agents_killed(trial: Trial) -> None:
    """Two agents end without a word and begin anew, knowing nothing."""
    trial.how = Raw(delay=PACE)

    def strike() -> None:
        for name in trial.rng.sample(AGENTS, 2):
            trial.fleet.sockets[name].die()
            trial.strike()

    later(trial, strike, trial.rng.uniform(0, LASTING))


# ---- the link ------------------------------------------------------------------------------------


def cut(way: str) -> Scenario:
    """The agents' connections are cut at 10 to 90 % of a transfer, in each round once."""

    def prepare(trial: Trial) -> None:
        trial.how = Raw(chunk=16 << 10)
        inner = trial.begin

        def begin() -> None:
            inner()
            proxy = Proxy((trial.host, trial.broker.port))
            trial.stack.callback(proxy.close)
            trial.fleet.how = replace(
                trial.fleet.how, beside=dict.fromkeys(trial.names[1:2], ("127.0.0.1", proxy.port))
            )
            size = CHUNKS * (16 << 10)
            first = 20_000 + int(trial.rng.uniform(0.1, 0.9) * size)  # beside what it says to join
            (proxy.cut_up if way == "up" else proxy.cut_down).extend(
                [first, *(int(trial.rng.uniform(0.1, 0.9) * size) for _ in range(ROUNDS - 1))]
            )

            def each() -> None:
                while proxy.cut > len(trial.struck):
                    trial.strike()

            trial.each = each

        trial.begin = begin  # type: ignore[method-assign]

    return prepare


def spoilt(what: Callable[[bytes, random.Random], list[bytes]]) -> Scenario:
    """One in a hundred chunks of updates is damaged, doubled or held back; one at least."""

    def prepare(trial: Trial) -> None:
        first, seen = trial.rng.randrange(CHUNKS), 0
        held: dict[str, list[tuple[str, bytes]]] = {}

        def bend(agent: str, topic: str, payload: bytes) -> Iterable[tuple[str, bytes]]:
            nonlocal seen
            waiting = held.pop(agent, [])
            if "/up/" not in topic:
                return [(topic, payload), *waiting]
            seen += 1
            if seen - 1 != first and trial.rng.random() >= SHARE:
                return [(topic, payload), *waiting]
            trial.strike()
            made = what(payload, trial.rng)
            if not made:
                held[agent] = [(topic, payload)]
            return [*((topic, one) for one in made), *waiting]

        trial.how = Raw(chunk=16 << 10, bend=bend)

    return prepare


def damaged(payload: bytes, rng: random.Random) -> list[bytes]:
    at = rng.randrange(len(payload))
    return [payload[:at] + bytes([payload[at] ^ (1 << rng.randrange(8))]) + payload[at + 1 :]]


def doubled(payload: bytes, rng: random.Random) -> list[bytes]:
    return [payload, payload]


def held_back(payload: bytes, rng: random.Random) -> list[bytes]:
    """Nothing now: it goes after the next one."""
    return []


def slow_subscriber(trial: Trial) -> None:
    """One agent takes in 100 kB/s while the others wait for nothing."""
    trial.how = Raw(slow={trial.rng.choice(AGENTS): 100_000.0})
    later(trial, trial.strike, 0.1)


def slow_link(trial: Trial) -> None:
    """The agents' way to the broker carries 1 MB/s and takes 300 ms there and back."""
    host, under = trial.stack.enter_context(link(1 + trial.seed % 250, RATE))
    trial.host, trial.under = host, under
    trial.how = Raw(chunk=64 << 10)
    inner = trial.begin

    def begin() -> None:
        inner()
        proxy = Proxy((host, trial.broker.port), DELAY)
        trial.stack.callback(proxy.close)
        trial.fleet.how = replace(
            trial.fleet.how, beside=dict.fromkeys(trial.names, ("127.0.0.1", proxy.port))
        )
        later(trial, trial.strike, 0.1)

    trial.begin = begin  # type: ignore[method-assign]


# ---- the disk ------------------------------------------------------------------------------------


def disk_full(trial: Trial) -> None:
    """The disk of the coordinator's runs is full for two seconds, but for up to 300 kB."""
    trial.how = Raw(delay=PACE)
    space = trial.stack.enter_context(small_disk(trial.runs, 48 << 20))
    left, state = trial.rng.randrange(300_000), {"due": 0.0}

    def strike() -> None:
        space.fill(left)
        trial.strike()
        state["due"] = time.monotonic() + 2.0

    later(trial, strike, trial.rng.uniform(0, LASTING))
    inner = trial.each

    def each() -> None:
        inner()
        if state["due"] and time.monotonic() >= state["due"]:
            state["due"] = 0.0
            space.empty()

    trial.each = each


FOLDS = ROUNDS * len(AGENTS)
SCENARIOS: dict[str, Scenario] = {
    "coordinator before a fold": fused("fold", "before", FOLDS),
    "coordinator during a fold": fused("fold", "during", FOLDS),
    "coordinator after a fold": fused("fold", "after", FOLDS),
    "coordinator in a snapshot": fused("snapshot", "during", FOLDS // 2),
    "coordinator before finish": fused("finish", "before", ROUNDS),
    "coordinator during finish": fused("finish", "during", ROUNDS),
    "coordinator after finish": fused("finish", "after", ROUNDS),
    "coordinator while it stores": fused("save", "during", ROUNDS),
    "coordinator after it stored": fused("save", "after", ROUNDS - 1),
    "coordinator at any moment": at_any_moment,
    "broker killed": broker_killed(persistent=True),
    "broker without persistence": broker_killed(persistent=False),
    "agents killed": agents_killed,
    "agent process killed": agent_killed,
    "upload cut": cut("up"),
    "download cut": cut("down"),
    "chunks damaged": spoilt(damaged),
    "chunks doubled": spoilt(doubled),
    "chunks reordered": spoilt(held_back),
    "slow subscriber": slow_subscriber,
    "disk full": disk_full,
    "disk of an agent full": agent_disk_full,
    "1 MB/s and 300 ms": slow_link,
}
# persistence, and a second address to listen on
MOSQUITTO_ONLY = ("broker killed", "1 MB/s and 300 ms")
