"""The benchmark of agents of unequal speed: its summary, and a short run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import speed_based_assignment
from benchmarks.speed_based_assignment import (
    CPUS,
    AgentRound,
    RoundCounts,
    compare_agents,
    measure,
    read_width,
    summarise,
)
from federated.errors import FleetError


def turn(number: int, agent: str, seconds: float, submodel: str = "w1-d1") -> AgentRound:
    return AgentRound(number, agent, submodel, "folded", seconds, seconds, 0.1, "why")


def test_the_ratio_compares_the_medians_of_the_agents() -> None:
    turns = [
        turn(number, agent, seconds)
        for number, seconds in enumerate((1.0, 9.0, 2.0), 1)
        for agent in CPUS
    ]
    slower = [
        turn(number, "a1", 3.0) if t.agent == "a1" else t for t in turns for number in [t.round]
    ]
    assert compare_agents(turns, range(1, 4)) == 1.0
    assert compare_agents(slower, range(1, 4)) == 1.5
    with pytest.raises(FleetError, match="a0 trained in none of the rounds 5 to 6"):
        compare_agents(turns, range(5, 7))


def test_the_summary_names_the_rounds_in_which_the_slowed_agent_changed_submodel() -> None:
    widths = {1: 0.5, 2: 0.5, 3: 0.5, 4: 0.5, 5: 0.25, 6: 0.25, 7: 0.25, 8: 0.4}
    turns = [
        turn(n, agent, 2.0, f"w{widths[n] if agent == 'a1' else 1}-d1")
        for n in widths
        for agent in CPUS
    ]
    made = summarise(turns, RoundCounts(3, 3, 2), 0.0)
    assert (made.slowed_after, made.moved, made.released_after, made.returned) == (3, 5, 6, 8)
    assert made.submodels == ("w1-d1", "w0.5-d1", "w1-d1", "w1-d1")


@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.slow
def test_a_short_run_records_every_turn_of_agents_under_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m benchmarks pacing` measures whether agents keep pace, alone on its machine.
    tests/edge_agent/join/test_participation.py checks that a limit shows in the measured seconds,
    tests/coordinator/assign and tests/coordinator/run/test_round_planning.py how those decide.
    """
    cpus = {name: CPUS[name] for name in ("a0", "a1")}  # the others start for minutes
    monkeypatch.setattr(speed_based_assignment, "CPUS", cpus)
    said = list[str]()
    made = measure(tmp_path, said.append, RoundCounts(1, 1, 0))
    assert [(t.round, t.agent, t.outcome) for t in made.turns] == [
        (number, agent, "folded") for number in (1, 2) for agent in cpus
    ]
    assert len(made.submodels) == len(cpus)
    assert all(0 < read_width(submodel) <= 1 for submodel in made.submodels)
    assert all(t.seconds > 0 and t.step > 0 and t.predicted > 0 and t.reason for t in made.turns)
    assert made.ratio >= 1
    assert "a1 is slowed down 3 times" in said
