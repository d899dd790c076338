"""What rounds have shown of an agent is folded by rules that can be computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.assign.standing import (
    PROOF,
    Observed,
    Setback,
    Standing,
    active,
    failed,
    in_time,
    late,
    learned,
    measured_anew,
    waited,
)
from federated.task import Card, Profile, Timing
from models.families.catalogue import menu, network

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
    """Ten steps of which each was predicted to take 0.1 s, and half a second beside."""
    return Observed(0.1, 10**8, settled, 1000, 10, step, 10 * step + 0.5, peak)


def test_the_first_measurement_weighs_a_half_and_later_ones_three_tenths() -> None:
    first = learned(Standing(), seen(0.12))
    assert first.step == pytest.approx(1.1), "half way from 1 to 1.2"
    second = learned(first, seen(0.14))
    assert second.step == pytest.approx(1.1 + 0.3 * 0.3)


def test_a_measurement_that_is_far_off_replaces_the_average() -> None:
    slowed = learned(learned(Standing(), seen(0.1)), seen(0.3))
    assert slowed.step == pytest.approx(3.0)
    assert learned(slowed, seen(0.11)).step == pytest.approx(1.1)


def test_what_sets_the_pace_of_others_rises_slowly_and_falls_as_the_average() -> None:
    assert learned(Standing(), seen(0.12)).usual == pytest.approx(1.1), (
        "the first measurement as with every average"
    )
    slowed = learned(learned(Standing(), seen(0.1)), seen(0.3))
    assert slowed.usual == pytest.approx(1.2), "a tenth of the way from 1 to 3"
    again = learned(slowed, seen(0.1))
    assert again.usual == again.step == pytest.approx(1.0), "a quick round proves what it can do"


def test_a_device_that_says_nothing_teaches_nothing() -> None:
    simulated = Observed(0.1, 10**8, 10.0, 1000, 10)
    assert learned(Standing(), simulated) == Standing()


def test_the_overhead_of_a_first_training_is_replaced_by_a_smaller_later_one() -> None:
    warming = replace(seen(0.1, settled=20.0), seconds=9.0)
    first = learned(Standing(), warming)
    assert first.extra == pytest.approx(8.0)
    assert learned(first, seen(0.1)).extra == pytest.approx(0.5)


def test_what_a_training_takes_beside_its_steps_is_kept_at_the_speed_of_the_profile() -> None:
    assert learned(Standing(), seen(0.2)).extra == pytest.approx(0.25), "0.5 s at half the speed"


def test_the_rate_of_the_link_is_what_was_no_training() -> None:
    slow = learned(Standing(), seen(0.1, settled=5.5))
    assert slow.rate == pytest.approx(1000 / 4.0)
    assert learned(Standing(), seen(0.1, settled=1.7)).rate == 0.0, "too brief to tell"
    assert learned(slow, seen(0.1, settled=1.7)).rate == pytest.approx(1000.0), (
        "but not as slow as was thought"
    )
    assert learned(slow, seen(0.1, settled=6.5)).rate == pytest.approx(250 + 0.3 * (200 - 250))


def test_memory_is_corrected_within_bounds_and_by_large_ones_alone() -> None:
    assert learned(Standing(), seen(0.1, peak=2 * 10**8)).memory == pytest.approx(1.3)
    assert learned(Standing(), seen(0.1, peak=10**12)).memory == 4.0
    assert (
        learned(Standing(), replace(seen(0.1, peak=2 * 10**8), predicted_memory=10**7)).memory
        == 1.0
    )


def test_a_new_measurement_starts_the_averages_anew() -> None:
    memory, slow = Setback("w1", "memory", 1, ""), Setback("w0.5", "late", 2, "")
    known = replace(
        measured_anew(Standing(), PROFILE),
        step=3.0,
        memory=1.2,
        misses=1,
        rate=5.0,
        setbacks=(memory, slow),
    )
    assert measured_anew(known, replace(PROFILE, memory=1, host="other")) == known, (
        "the same timings"
    )
    other = measured_anew(known, replace(PROFILE, timings=(Timing(SMALL, 32, 0.02),)))
    assert other == Standing(other.basis, memory=1.2, setbacks=(memory,)), (
        "how much memory it takes was not measured"
    )


def test_a_setback_is_tried_again_after_three_rounds_in_time_and_then_after_six() -> None:
    standing = failed(Standing(), "w1", 4, "killed by the system, most likely out of memory")
    assert [(s.submodel, s.kind, s.proofs) for s in standing.setbacks] == [("w1", "memory", PROOF)]
    for _ in range(3):
        assert active(standing)
        standing = in_time(standing)
    assert not active(standing)
    again = failed(standing, "w1", 8, "out of memory")
    assert active(again)[0].proofs == 6
    assert active(failed(again, "w1", 9, "out of memory"))[0].proofs == 12
    assert in_time(standing, ["w1"]).setbacks == (), "it did well: forgotten"


def test_one_setback_is_worked_off_after_the_other() -> None:
    both = failed(failed(Standing(), "large", 1, "out of memory"), "middle", 2, "out of memory")
    assert [(s.submodel, s.proofs) for s in waited(both).setbacks] == [("large", 3), ("middle", 2)]
    for _ in range(3):
        both = waited(both)
    assert [s.submodel for s in active(both)] == ["large"]


def test_being_late_says_how_slow_it_must_be_and_twice_in_a_row_halves_what_is_next() -> None:
    once = late(Standing(), "w1", 2, 30.0, 10.0)
    assert (once.step, once.misses) == (3.0, 1)
    assert once.setbacks == (Setback("w1", "late", 2, "was late in round 2 with w1"),)
    twice = late(once, "w0.5", 3, 30.0, 20.0)
    assert (twice.step, twice.misses) == (4.5, 2)
    assert twice.setbacks[-1].share == 0.5
    assert in_time(twice).misses == 0


def test_a_failure_for_another_reason_is_told_as_such() -> None:
    standing = failed(Standing(), "w1", 4, "RuntimeError: no")
    assert (standing.setbacks[0].kind, standing.setbacks[0].words) == (
        "failed",
        "failed in round 4 with w1: RuntimeError: no",
    )
