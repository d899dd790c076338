"""The campaign of attacks: pairs, summaries, and some runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.attacks.command import (
    CATALOGUE,
    Result,
    draw_pairs,
    has_failed,
    may_combine,
    read_log,
    run_attack,
    summarise,
)
from benchmarks.faults.trial import Outcome
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
        ("rot in the journal", "two coordinators", False),
    ],
)
def test_scenarios_that_control_the_same_part_are_not_combined(
    one: str, other: str, possible: bool
) -> None:
    assert may_combine(one, other) == may_combine(other, one) == possible


def test_a_summary_compares_rounds_with_undisturbed_ones() -> None:
    results = [Result("mute", FINE, 0, seconds) for seconds in (1.0, 3.0, 2.0)]
    summary = summarise("mute", results, calm=1.0)
    assert (summary.injected, summary.survived, summary.equal) == (3, 3, 3)
    assert summary.honest_ratio == 2.0
    assert not has_failed(summary)
    assert has_failed(summarise("mute", [*results, Result("mute", FINE, 1, 1.0)], calm=1.0))


def test_a_log_loses_only_the_line_that_was_cut_off(tmp_path: Path) -> None:
    log, results = tmp_path / "log", [Result("mute", FINE, 0, seconds) for seconds in (1.0, 2.0)]
    assert read_log(log) == []
    log.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in results) + b'{"na')
    assert read_log(log) == results
    with log.open("ab") as file:
        file.write(msgspec.json.encode(results[0]) + b"\n")
    assert read_log(log) == [*results, results[0]]
    log.write_bytes(b"notes\n")
    with pytest.raises(ConfigError, match="--log"):
        read_log(log)


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.processes
@needs_mosquitto
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("mute", marks=pytest.mark.beside),
        pytest.param("rot in a checkpoint", marks=pytest.mark.beside),
        pytest.param("speaks for another + sends NaN", marks=pytest.mark.beside),
        "flood of chunks",
        pytest.param("two coordinators", marks=pytest.mark.beside),
    ],
)
def test_a_run_survives(tmp_path: Path, name: str) -> None:
    result = run_attack(name, tmp_path / "run", 1)
    assert not has_failed(summarise(name, [result], 1.0)), result.outcome.why
    assert result.outcome.injected
