"""Canaries: how their agents are drawn, and how their reports are judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.release.canary import Verdict, draw_agents, judge, select_reports
from export.release_reader import Bundle, Entry, File, Variant
from federated.errors import FleetError, Unknown, UsageError
from federated.wire.release_messages import Serving

OLD, NEW = "a" * 12, "b" * 12
FLEET = [f"d{i}" for i in range(21)]


@pytest.mark.parametrize(
    ("share", "count"), [("10%", 3), ("100%", 21), ("0.1%", 1), ("1", 1), ("21", 21), ("33.3%", 7)]
)
def test_a_share_is_rounded_up(share: str, count: int) -> None:
    found = draw_agents(share, OLD, FLEET)
    assert len(set(found)) == count
    assert set(found) <= set(FLEET)


def test_ten_percent_of_ten_is_one() -> None:
    """Not two, as 10 * 0.1 in floating point might give when rounded up."""
    assert len(draw_agents("10%", OLD, FLEET[:10])) == 1
    assert len(draw_agents("70%", OLD, FLEET[:10])) == 7


def test_the_draw_depends_on_the_version_only() -> None:
    assert draw_agents("20%", OLD, FLEET) == draw_agents("20%", OLD, FLEET[::-1])
    assert draw_agents("20%", OLD, FLEET) != draw_agents("20%", NEW, FLEET)


def test_agents_may_be_named() -> None:
    assert draw_agents("d3, d1,d3", OLD, FLEET) == ("d1", "d3")
    with pytest.raises(Unknown, match="unknown agent 'd99'; did you mean d9"):
        draw_agents("d99", OLD, FLEET)
    assert draw_agents("away", OLD, FLEET, ["away"]) == ("away",)


@pytest.mark.parametrize("share", ["0%", "101%", "0", "22", "", "a b", "10%%"])
def test_an_invalid_share_is_a_usage_error(share: str) -> None:
    with pytest.raises(UsageError, match="--canary: expected"):
        draw_agents(share, OLD, FLEET)


def test_a_canary_requires_a_known_agent() -> None:
    with pytest.raises(FleetError, match="cannot draw a canary"):
        draw_agents("10%", OLD, [])


def manifest(accuracy: float | None = None, int8: float | None = None) -> Bundle:
    file = File("f", 1, "0" * 64)
    variants = (Variant("fp32", file, 0.0, accuracy), Variant("int8-u8s8", file, 0.0, int8))
    return Bundle("r", 1, (2,), "uint8", "class", 2, 2, (Entry("w1", 4, 4, variants, file),), file)


def serving(
    agent: str,
    version: str,
    p90: float | None = 0.010,
    accuracy: float | None = None,
    examples: int = 0,
    **more: Any,
) -> Serving:
    return Serving(
        agent,
        "s",
        version,
        "w1",
        more.pop("variant", "fp32"),
        "cpu",
        p90,
        p90,
        accuracy,
        examples,
        **more,
    )


def judge_reports(
    reports: list[Serving],
    before: list[Serving],
    made: Bundle | None = None,
    old: Bundle | None = None,
    agents: str = "pi tv",
) -> Verdict:
    named = agents.split()
    return judge(
        NEW,
        named,
        {one.agent: one for one in reports},
        {one.agent: one for one in before},
        made or manifest(),
        (OLD, old or manifest()),
    )


def test_a_version_as_good_as_the_stable_one_passes() -> None:
    verdict = judge_reports(
        [serving("pi", NEW), serving("tv", NEW)], [serving("pi", OLD), serving("tv", OLD)]
    )
    assert verdict.good
    assert (
        "p90 is 1.00 times that of the stable version, +0.00 ms (median of 2 agents)"
        in verdict.notes
    )


def test_a_canary_without_any_report_fails() -> None:
    assert judge_reports([], []).reasons == ("no report from any of its 2 agents (pi, tv)",)
    assert judge_reports([serving("pi", OLD)], [], agents="pi").reasons == (
        "no report from any of its 1 agent (pi)",
    )


def test_one_report_is_enough_and_missing_ones_are_noted() -> None:
    verdict = judge_reports([serving("pi", NEW)], [serving("pi", OLD)])
    assert verdict.good
    assert "no report from tv" in verdict.notes


def test_a_single_refusal_fails_a_canary() -> None:
    verdict = judge_reports(
        [serving("pi", NEW), serving("tv", OLD, refused=NEW, reason="the self-test fails")], []
    )
    assert verdict.reasons == ("tv refused it: the self-test fails",)


def test_accuracy_is_pooled_over_examples() -> None:
    """900 examples lose nothing and 100 lose 5 points: half a point in total. The other way round
    it is 4.5 points.
    """
    before = [
        serving("pi", OLD, accuracy=0.9, examples=900),
        serving("tv", OLD, accuracy=0.9, examples=100),
    ]
    after = [
        serving("pi", NEW, accuracy=0.9, examples=900),
        serving("tv", NEW, accuracy=0.85, examples=100),
    ]
    assert judge_reports(after, before).good
    swapped = [replace(one, examples=1000 - one.examples) for one in after]
    assert judge_reports(swapped, before).reasons == (
        "accuracy on 1000 examples of 2 agents: 0.855, stable version 0.900",
    )


@pytest.mark.parametrize("examples", [100, 1000, 2**62 - 1])
@pytest.mark.parametrize("agents", [3, 4, 9])
def test_a_single_agent_neither_forces_a_rollback_nor_hides_a_loss(
    agents: int, examples: int
) -> None:
    """The others have 100 examples each, and lose nothing or three points."""
    named = [f"d{i}" for i in range(agents)]
    for loss, (old, new) in (
        (0.0, (1.0, -1e100)),
        (0.0, (1.0, 0.0)),
        (0.03, (-1e100, 1.0)),
        (0.03, (0.0, 1.0)),
        (0.03, (0.9, 0.87)),
    ):
        before = [serving(name, OLD, accuracy=0.9, examples=100) for name in named]
        after = [serving(name, NEW, accuracy=0.9 - loss, examples=100) for name in named]
        before[0] = replace(before[0], accuracy=old, examples=examples)
        after[0] = replace(after[0], accuracy=new, examples=examples)
        verdict = judge_reports(after, before, agents=" ".join(named))
        assert verdict.good is (loss == 0), verdict


def test_of_five_agents_the_largest_gain_and_the_largest_loss_are_left_out() -> None:
    """The other losses are 0, 0.01 and 0.05, of 100, 100 and 300 examples: 0.032 in the mean."""
    rows = {"a": (100, 0.9), "b": (100, 0.89), "c": (300, 0.85), "d": (900, 0.1), "e": (900, 1.0)}
    before = [serving(name, OLD, accuracy=0.9, examples=n) for name, (n, _) in rows.items()]
    after = [serving(name, NEW, accuracy=new, examples=n) for name, (n, new) in rows.items()]
    assert judge_reports(after, before, agents="a b c d e").reasons == (
        "accuracy on 500 examples of 3 of 5 agents, without the largest gains and losses: 0.868, "
        "stable version 0.900",
    )


def test_no_agent_counts_with_more_than_ten_times_the_median_of_the_examples() -> None:
    """Two agents: 10 examples lose 30 points, and 10^6, which count as 100, lose none."""
    before = [
        serving("pi", OLD, accuracy=0.9, examples=10),
        serving("tv", OLD, accuracy=0.9, examples=10**6),
    ]
    after = [
        serving("pi", NEW, accuracy=0.6, examples=10),
        serving("tv", NEW, accuracy=0.9, examples=10**6),
    ]
    assert judge_reports(after, before).reasons == (
        "accuracy on 110 examples of 2 agents: 0.873, stable version 0.900",
    )


@pytest.mark.parametrize(("new", "good"), [(0.89, True), (0.889, False), (1.0, True)])
def test_one_point_may_be_lost(new: float, good: bool) -> None:
    assert (
        judge_reports(
            [serving("pi", NEW, accuracy=new, examples=10)],
            [serving("pi", OLD, accuracy=0.9, examples=10)],
        ).good
        is good
    )


def test_without_data_on_devices_the_accuracy_in_the_manifests_counts() -> None:
    reports = [serving("pi", NEW, variant="int8-u8s8")]
    before = [serving("pi", OLD, variant="int8-u8s8")]
    assert judge_reports(reports, before, manifest(0.9, 0.9), manifest(0.95, 0.9)).good
    assert judge_reports(reports, before, manifest(0.9, 0.8), manifest(0.9, 0.9)).reasons == (
        "accuracy at export: 0.800, stable version 0.900",
    )
    assert any(
        "accuracy could not be compared" in note for note in judge_reports(reports, before).notes
    )


@pytest.mark.parametrize(
    ("times", "good"), [((1.2, 1.2, 1.2), True), ((1.3, 1.0, 1.0), True), ((1.3, 1.3, 1.0), False)]
)
def test_latency_is_the_median_ratio_over_agents(times: tuple[float, ...], good: bool) -> None:
    before = [serving(f"d{i}", OLD, p90=0.010) for i in range(3)]
    after = [serving(f"d{i}", NEW, p90=0.010 * ratio) for i, ratio in enumerate(times)]
    verdict = judge_reports(after, before, agents="d0 d1 d2")
    assert verdict.good is good
    if not good:
        assert verdict.reasons == (
            "p90 is 1.30 times that of the stable version, +3.00 ms (median of 3 agents)",
        )


def test_a_difference_of_microseconds_is_ignored() -> None:
    assert judge_reports([serving("pi", NEW, p90=0.0003)], [serving("pi", OLD, p90=0.0001)]).good


def test_latency_on_another_submodel_is_not_compared() -> None:
    verdict = judge_reports(
        [serving("pi", NEW, p90=0.1)], [replace(serving("pi", OLD), submodel="w0.5")]
    )
    assert verdict.good
    assert any("latency could not be compared" in note for note in verdict.notes)


def test_a_measurement_beside_the_canary_counts_before_an_earlier_report() -> None:
    """The device is hot now, so both versions take three times as long."""
    before = [serving("pi", OLD, p90=0.010, accuracy=0.9, examples=10)]
    hot = serving(
        "pi",
        NEW,
        p90=0.030,
        accuracy=0.8,
        examples=10,
        before=OLD,
        p90_before=0.030,
        accuracy_before=0.8,
    )
    assert judge_reports([hot], before).good
    assert not judge_reports([replace(hot, before="c" * 12)], before).good, (
        "measured beside some other version"
    )


def test_a_first_release_is_judged_by_its_self_tests_only() -> None:
    assert judge(NEW, ["pi"], {"pi": serving("pi", NEW)}, {}, manifest(), None).good
    assert not judge(NEW, ["pi"], {"pi": serving("pi", "", refused=NEW)}, {}, manifest(), None).good


def test_only_reports_about_the_version_count() -> None:
    servings = {"pi": serving("pi", NEW), "tv": serving("tv", OLD), "old": serving("old", NEW)}
    assert select_reports(["pi", "tv", "away"], NEW, servings) == {"pi": servings["pi"]}
