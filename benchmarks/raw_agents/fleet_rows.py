"""Compare what the rounds of a fleet needed with limits, and with what fewer agents needed."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from benchmarks.comparison.rows import AT_MOST, Baseline, Row, compare

__all__ = ["FEW", "HUNDRED", "Course", "Turn", "compare_hundred", "make_rows"]

FEW, HUNDRED = 2, 100  # agents of the runs for comparison: of memory, and of time per agent
MOST_TIME = 4.0  # milliseconds of the coordinator's processor time for an agent and a round
MOST_TIMES = 1.3  # of that time with a hundred agents
MOST_MODELS = 3.0  # growth of its memory, in models


@dataclass(frozen=True)
class Turn:
    """Measurements of one round.

    round: number of the round
    folded: number of updates in the model
    seconds: duration, from the run's record
    rss: peak memory of the coordinator in bytes
    coordinator, broker: seconds of processor time of each
    workers: seconds of processor time of the processes that receive updates, all together
    fold: seconds of the coordinator's processor time in which it added updates
    """

    round: int
    folded: int
    seconds: float
    rss: int
    coordinator: float
    broker: float
    workers: float = 0.0
    fold: float = 0.0


@dataclass(frozen=True)
class Course:
    """Measurements of one run.

    turns: measurements of each round
    joined: seconds until the first task
    connected: number of agents that were connected at the first task
    before: bytes of the coordinator just before the first task
    """

    turns: tuple[Turn, ...]
    joined: float
    connected: int
    before: int


def make_rows(
    few: Course, many: Course, agents: int, model: int, *, limited: bool = True
) -> list[Row]:
    """Return the comparisons of a run that lost no update.

    model: bytes of the weights
    limited: whether the limit of the coordinator's time holds, which is for small updates
    """
    turns, peak = many.turns, max(turn.rss for turn in many.turns)
    base, name = max(turn.rss for turn in few.turns), f"{agents:,} agents"
    workers = statistics.median(turn.workers for turn in turns)
    broker = statistics.median(turn.broker for turn in turns)
    return [
        compare(f"{name}, updates lost or counted twice", 0, 1.0, limit=Baseline(AT_MOST, 0)),
        compare(
            f"{name}, coordinator's processor time per agent (ms)",
            find_time_per_agent(many, agents),
        ),
        compare(
            f"{name}, of which without adding updates (ms)",
            1000 * statistics.median(turn.coordinator - turn.fold for turn in turns) / agents,
            1.0,
            limit=Baseline(AT_MOST, MOST_TIME) if limited else None,
        ),
        *(
            [compare(f"{name}, workers' processor time per agent (ms)", 1000 * workers / agents)]
            if workers
            else []
        ),
        compare(f"{name}, broker's processor time per agent (ms)", 1000 * broker / agents),
        compare(f"{name}, round (s)", statistics.median(turn.seconds for turn in turns)),
        compare(f"{name}, coordinator's memory (MB)", peak / 1e6),
        compare(
            f"{name}, growth from {FEW} agents (models)",
            (peak - base) / model,
            1.0,
            limit=Baseline(AT_MOST, MOST_MODELS),
        ),
    ]


def compare_hundred(hundred: Course, many: Course, agents: int) -> Row:
    """Compare the coordinator's processor time per agent with that of a hundred agents."""
    name = f"{agents:,} agents, coordinator's processor time per agent, growth (ms)"
    limit = Baseline(f"{HUNDRED} agents", find_time_per_agent(hundred, HUNDRED))
    return compare(name, find_time_per_agent(many, agents), 1 / MOST_TIMES, limit=limit)


def find_time_per_agent(course: Course, agents: int) -> float:
    """Return the median milliseconds of the coordinator's processor time, per agent and round."""
    return 1000 * statistics.median(turn.coordinator for turn in course.turns) / agents
