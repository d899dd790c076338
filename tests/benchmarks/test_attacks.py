"""The campaign of attacks: pairs, summaries, and some runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.attacks.command import (
    CALM,
    CALM_TLS,
    CATALOGUE,
    Result,
    draw_pairs,
    has_failed,
    list_jobs,
    may_combine,
    read_log,
    run_attack,
    summarise,
    summarise_all,
)
from benchmarks.faults.outcome import Outcome
from federated.errors import ConfigError
from tests.support.brokers import needs_mosquitto

FINE = Outcome("mute", 1, 1, True, 0, 0, True, (), 9.0)


def test_a_seed_repeats_its_pairs_and_each_can_disturb_one_run() -> None:
    pairs = draw_pairs(200, seed=3)
    assert pairs == draw_pairs(200, seed=3)
    assert pairs != draw_pairs(200, seed=4)
    assert all(may_combine(*pair.split(" + ")) for pair in pairs)
    assert {part for pair in pairs for part in pair.split(" + ")} <= CATALOGUE.keys()


@pytest.mark.parametrize(
    ("one", "other", "possible"),
    [
        ("mute", "broker killed", True),
        ("mute", "drips", False),
        ("guessed tokens", "broker killed", False),
        ("guessed tokens", "mute", True),
        ("bit flip in the journal", "two coordinators", False),
        ("disk of an agent full", "mute", False),
        ("disk of an agent full", "broker killed", True),
    ],
)
def test_scenarios_that_control_the_same_part_are_not_combined(
    one: str, other: str, possible: bool
) -> None:
    assert may_combine(one, other) == may_combine(other, one) == possible


def make_result(name: str, seed: int, seconds: float, intruded: int = 0) -> Result:
    outcome = Outcome(name, seed, 1, True, 0, 0, True, (), 9.0)
    return Result(name, outcome, intruded, seconds)


def test_a_summary_compares_rounds_with_undisturbed_ones_nearby() -> None:
    """The machine becomes ten times slower in the middle of the campaign."""
    names = [CALM, CALM, "mute", CALM, CALM] * 2
    jobs = list(zip(names, range(10), strict=True))
    seconds = [1.0, 1.0, 1.5, 1.0, 1.0, 10.0, 10.0, 15.0, 10.0, 10.0]
    results = [make_result(*job, each) for job, each in zip(jobs, seconds, strict=True)]
    calm, mute = summarise_all(jobs, results)
    assert (mute.injected, mute.survived, mute.equal) == (2, 2, 2)
    assert mute.honest_ratio == 1.5
    assert not has_failed(mute)
    assert not has_failed(calm)


def test_a_campaign_fails_if_an_agent_intrudes_or_holds_up_the_others() -> None:
    results = [make_result("mute", 1, 2.1)]
    assert not has_failed(summarise("mute", results, [1.9]))
    assert has_failed(summarise("mute", results, [2.1]))
    assert not has_failed(summarise("flood of the broker", results, [2.1]))
    assert has_failed(summarise("mute", [make_result("mute", 1, 2.0, intruded=1)], [1.0]))


def test_undisturbed_runs_are_spread_over_the_campaign() -> None:
    jobs = list_jobs(["mute", "guessed tokens"], times=15, pairs=0, seed=1)
    assert len(set(jobs)) == len(jobs)
    for calm in (CALM, CALM_TLS):
        assert [at for at, (name, _) in enumerate(jobs) if name == calm] == [
            at + (calm == CALM_TLS) for at in (0, 12, 24, 36)
        ]


def test_a_log_loses_only_the_line_that_was_cut_off(tmp_path: Path) -> None:
    log, results = tmp_path / "log", [Result("mute", FINE, 0, seconds) for seconds in (1.0, 2.0)]
    assert read_log(log) == []
    log.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in results) + b'{"na')
    assert read_log(log) == results
    with log.open("ab") as file:
        file.write(msgspec.json.encode(results[0]) + b"\n")
    assert read_log(log) == [*results, results[0]]
    for foreign in (b"notes\n", b"notes\nmore", b"notes"):
        log.write_bytes(foreign)
        with pytest.raises(ConfigError, match="--log"):
            read_log(log)
        assert log.read_bytes() == foreign


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.processes
@needs_mosquitto
@pytest.mark.parametrize(
    "name",
    [
        "mute",
        "bit flip in a checkpoint",
        "speaks for another + sends NaN",
        "flood of chunks",
        "two coordinators",
    ],
)
def test_a_run_survives(tmp_path: Path, name: str) -> None:
    result = run_attack(name, tmp_path / "run", 1)
    assert not has_failed(summarise(name, [result], [])), result.outcome.why
    assert result.outcome.injected
