"""Standing of an agent after rounds, compared with values computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.assign.agent_track_record import (
    PROOF,
    Observed,
    Setback,
    Standing,
    count_round,
    learn,
    list_active,
    record_failure,
    record_in_time,
    record_late,
    record_timing,
    reset_timings,
)
from federated.task import Card, Profile, Timing
from models.menu import menu
from models.named_network import network

SMALL, LARGE = menu(network("preresnet", (1, 8, 8), 10), (0.5, 1.0), (2,))
PROFILE = Profile(
    "a",
    "h",
    "s",
    1.0,
    10**9,
    1e6,
    2**18,
    "torch",
    Card("d", (1, 8, 8), "uint8", 10, 100, 20, (5.0,), (6.0,)),
    (Timing(SMALL, 32, 0.01),),
)


def seen(step: float, settled: float = 10.0, peak: int = 0) -> Observed:
    """Return ten steps, each predicted to take 0.1 s, and half a second of other work."""
    return Observed(0.1, 10**8, settled, 1000, 10, step, 10 * step + 0.5, peak)


def test_the_first_measurement_weighs_a_half_and_later_ones_three_tenths() -> None:
    first = learn(Standing(), seen(0.12))
    assert first.step == pytest.approx(1.1), "half way from 1 to 1.2"
    second = learn(first, seen(0.14))
    assert second.step == pytest.approx(1.1 + 0.3 * 0.3)


def test_a_measurement_that_is_far_off_replaces_the_average() -> None:
    slowed = learn(learn(Standing(), seen(0.1)), seen(0.3))
    assert slowed.step == pytest.approx(3.0)
    assert learn(slowed, seen(0.11)).step == pytest.approx(1.1)


def test_usual_rises_slowly_and_falls_with_the_average() -> None:
    assert learn(Standing(), seen(0.12)).usual == pytest.approx(1.1), (
        "the first measurement as with every average"
    )
    slowed = learn(learn(Standing(), seen(0.1)), seen(0.3))
    assert slowed.usual == pytest.approx(1.2), "a tenth of the way from 1 to 3"
    again = learn(slowed, seen(0.1))
    assert again.usual == again.step == pytest.approx(1.0), "falls at once"


def test_trainings_without_reported_times_change_nothing() -> None:
    simulated = Observed(0.1, 10**8, 10.0, 1000, 10)
    assert learn(Standing(), simulated) == Standing()


def test_the_overhead_of_a_first_training_is_replaced_by_a_smaller_later_one() -> None:
    warming = replace(seen(0.1, settled=20.0), seconds=9.0)
    first = learn(Standing(), warming)
    assert first.extra == pytest.approx(8.0)
    assert learn(first, seen(0.1)).extra == pytest.approx(0.5)


def test_extra_time_is_scaled_to_the_speed_of_the_profile() -> None:
    assert learn(Standing(), seen(0.2)).extra == pytest.approx(0.25), "0.5 s at half the speed"


def test_link_rate_comes_from_the_time_outside_training() -> None:
    slow = learn(Standing(), seen(0.1, settled=5.5))
    assert slow.rate == pytest.approx(1000 / 4.0)
    assert learn(Standing(), seen(0.1, settled=1.7)).rate == 0.0, "too short to measure"
    assert learn(slow, seen(0.1, settled=1.7)).rate == pytest.approx(1000.0), "a lower limit"
    assert learn(slow, seen(0.1, settled=6.5)).rate == pytest.approx(250 + 0.3 * (200 - 250))


def test_memory_is_corrected_within_bounds_and_from_large_submodels_only() -> None:
    assert learn(Standing(), seen(0.1, peak=2 * 10**8)).memory == pytest.approx(1.3)
    assert learn(Standing(), seen(0.1, peak=10**12)).memory == 4.0
    assert (
        learn(Standing(), replace(seen(0.1, peak=2 * 10**8), predicted_memory=10**7)).memory == 1.0
    )


def test_new_timings_reset_the_averages() -> None:
    memory, slow = Setback("w1", "memory", 1, ""), Setback("w0.5", "late", 2, "")
    known = replace(
        reset_timings(Standing(), PROFILE),
        step=3.0,
        memory=1.2,
        misses=1,
        rate=5.0,
        setbacks=(memory, slow),
    )
    assert reset_timings(known, replace(PROFILE, memory=1, host="other")) == known, (
        "the same timings"
    )
    other = reset_timings(known, replace(PROFILE, timings=(Timing(SMALL, 32, 0.02),)))
    assert other == Standing(other.basis, memory=1.2, setbacks=(memory,)), (
        "a profile does not measure memory"
    )


def test_a_submodel_is_retried_after_three_rounds_in_time_and_then_after_six() -> None:
    standing = record_failure(
        Standing(), "w1", 4, "killed by the system, most likely out of memory"
    )
    assert [(s.submodel, s.kind, s.proofs) for s in standing.setbacks] == [("w1", "memory", PROOF)]
    for _ in range(3):
        assert list_active(standing)
        standing = record_in_time(standing)
    assert not list_active(standing)
    again = record_failure(standing, "w1", 8, "out of memory")
    assert list_active(again)[0].proofs == 6
    assert list_active(record_failure(again, "w1", 9, "out of memory"))[0].proofs == 12
    assert record_in_time(standing, ["w1"]).setbacks == (), "trained in time: forgotten"


def test_rounds_in_time_count_toward_the_latest_setback() -> None:
    both = record_failure(
        record_failure(Standing(), "large", 1, "out of memory"), "middle", 2, "out of memory"
    )
    assert [(s.submodel, s.proofs) for s in count_round(both).setbacks] == [
        ("large", 3),
        ("middle", 2),
    ]
    for _ in range(3):
        both = count_round(both)
    assert [s.submodel for s in list_active(both)] == ["large"]


def test_late_updates_raise_the_step_and_the_second_in_a_row_halves_the_share() -> None:
    once = record_late(Standing(), "w1", 2, 30.0, 10.0)
    assert (once.step, once.misses) == (3.0, 1)
    assert once.setbacks == (Setback("w1", "late", 2, "was late in round 2 with w1"),)
    twice = record_late(once, "w0.5", 3, 30.0, 20.0)
    assert (twice.step, twice.misses) == (4.5, 2)
    assert twice.setbacks[-1].share == 0.5
    assert record_in_time(twice).misses == 0


def test_other_failures_keep_their_reason() -> None:
    standing = record_failure(Standing(), "w1", 4, "RuntimeError: no")
    assert (standing.setbacks[0].kind, standing.setbacks[0].words) == (
        "failed",
        "failed in round 4 with w1: RuntimeError: no",
    )


def test_the_first_step_time_of_a_submodel_is_kept_at_the_speed_of_the_first_training() -> None:
    once = record_timing(Standing(), Timing(SMALL, 32, 0.2))
    assert once.timings == (Timing(SMALL, 32, 0.2),)
    assert record_timing(once, Timing(SMALL, 32, 0.9)) == once
    slowed = record_timing(replace(once, step=2.0), Timing(LARGE, 32, 0.8))
    assert slowed.timings[1] == Timing(LARGE, 32, 0.4), "twice as slow now as then"
    free = replace(PROFILE, timings=())
    known = reset_timings(Standing(), free)
    assert reset_timings(record_timing(known, Timing(SMALL, 32, 0.2)), free).timings
