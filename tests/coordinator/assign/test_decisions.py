"""Decisions give reasons with numbers that can be verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from coordinator.assign.affordable_submodels import MARGIN, UNENCODED, Offer, make_offers
from coordinator.assign.agent_track_record import Standing, record_failure, record_late
from coordinator.assign.decisions import (
    Candidate,
    Verdict,
    decide,
    decide_absent,
    describe_move,
    human_seconds,
    mark_undrawn,
    megabytes,
)
from coordinator.assign.submodel_pins import Pin
from coordinator.settings.config import Config
from coordinator.settings.config_tables import Assign, Fleet, Wire
from federated.task import Profile, Recipe, Timing
from models.cost import cost
from models.submodel import Submodel
from tests.coordinator.assign.test_affordable_submodels import CARD, MENU

RECIPE = Recipe(batch=32, steps=10, epochs=10)
NAMES = [submodel.name for submodel in MENU]


def device(name: str, speed: float = 1.0, memory: int = 10**9) -> Profile:
    """Return a device on which each submodel was timed: in proportion to its parameters, the
    largest in a second.
    """
    timings = tuple(
        Timing(s, 32, cost(s).parameters / cost(MENU[-1]).parameters / speed) for s in MENU
    )
    return Profile(name, "h", "s", 1.0, memory, 0.0, 0, "torch", CARD, timings)


def largest(index: int, candidate: Candidate, can: Sequence[Submodel]) -> Submodel:
    return can[-1]


def make_config(slack: float = 1.0, deadline: float = 0.0) -> Config:
    return Config(assign=Assign(slack=slack), fleet=Fleet(deadline=deadline))


def judge(*candidates: Candidate, deadline: float = 0, slack: float = 1.0) -> list[Verdict]:
    return decide(MENU, RECIPE, candidates, make_config(slack, deadline), largest)


def reason(*candidates: Candidate, deadline: float = 0, slack: float = 1.0) -> str:
    return judge(*candidates, deadline=deadline, slack=slack)[0].decision.reason


QUICK = Candidate("quick", device("quick"))


def test_reason_for_the_largest_submodel() -> None:
    made = judge(QUICK)[0].decision
    assert (made.submodel, made.asked, made.step, made.seconds) == (NAMES[-1], True, 1.0, 10.0)
    assert made.reason == "the largest submodel: 10 s per round (limit 10 s)"


def test_reasons_name_the_pace_or_the_deadline() -> None:
    slow = Candidate("slow", device("slow", 0.5))
    own = make_offers(slow.profile, MENU, RECIPE, 0.6, UNENCODED)
    fits, next_one = (
        [o for o in own if o.seconds <= 10.0][-1],
        next(o for o in own if o.seconds > 10.0),
    )
    told = (
        f"{human_seconds(fits.seconds)} per round (limit 10 s); {next_one.submodel.name} would "
        f"take {human_seconds(next_one.seconds)} per round"
    )
    assert reason(slow, QUICK) == f"the largest that keeps the pace: {told}"
    assert reason(slow, deadline=10.0) == f"the largest that meets the deadline: {told}"
    steps = decide(MENU, Recipe(batch=32), [slow, QUICK], make_config(), largest)[0].decision.reason
    assert steps.startswith(
        f"the largest that keeps the pace: {human_seconds(fits.step)} per step (limit 1 s); "
    )


def test_smallest_submodel_when_none_is_quick_enough() -> None:
    assert reason(Candidate("slow", device("slow", 0.01)), deadline=1.0).startswith(
        "the smallest that fits, though it takes "
    )


def test_reasons_name_the_memory() -> None:
    room = int(cost(MENU[3], 32).memory / 0.6) + 1
    little = Candidate("little", device("little", memory=room))
    found = judge(little, QUICK)[0]
    following = MENU[NAMES.index(found.decision.submodel) + 1]
    assert (
        found.decision.reason == f"the largest that fits memory: {following.name} needs "
        f"{megabytes(cost(following, 32).memory)}"
    )
    nothing = reason(Candidate("none", device("none", memory=10**6)))
    assert nothing.startswith(f"no submodel fits its memory: {NAMES[0]} needs ")
    assert nothing.endswith(", and training may use 0.6 MB (60% of 1 MB)")


def test_a_smaller_submodel_that_is_predicted_to_be_slower_is_a_move_down() -> None:
    before, after = Offer(MENU[-1], 1.0, 1.0, 1, True), Offer(MENU[0], 2.0, 2.0, 1, True)
    assert describe_move(before, after) == f"moved down from {NAMES[-1]}: "
    assert describe_move(after, before) == f"moved up from {NAMES[0]}: "


def test_reasons_name_setbacks_and_prediction_errors() -> None:
    was = {"previous": MENU[-1]}
    late_one = Candidate(
        "late", device("late"), record_late(Standing(), NAMES[-1], 4, 10.0, 10.0), **was
    )
    assert (
        reason(late_one)
        == f"moved down from {NAMES[-1]}: was late in round 4 with {NAMES[-1]}; retried "
        "after enough rounds in time"
    )
    off = Candidate("off", device("off"), Standing(step=3.0), **was)
    assert reason(off, QUICK).endswith("; steps take 3 times as long as profiled")
    assert reason(off, QUICK).startswith(
        f"moved down from {NAMES[-1]}: the largest that keeps the pace: "
    )
    left = Candidate("left", device("left"), record_failure(Standing(), NAMES[0], 2, "no room"))
    assert judge(left)[0].submodel is None
    assert reason(left) == (
        f"excluded for now: failed in round 2 with {NAMES[0]}: no room, and there is no smaller "
        "submodel"
    )


def test_reasons_name_close_cases() -> None:
    """An agent with 1 % to spare for the largest submodel keeps the one before it."""
    careful = Candidate("careful", device("careful"), previous=MENU[-2])
    found = judge(careful, deadline=10.1)[0].decision
    assert MARGIN > 0.01
    assert found.submodel == NAMES[-2]
    assert found.reason.endswith(f"; {NAMES[-1]} would take 10 s per round, too close to change")


def test_agent_slightly_too_slow_keeps_its_submodel() -> None:
    """The agent is 3 % slower than the pace that the other sets."""
    kept = Candidate("kept", device("kept", 1 / 1.03), previous=MENU[-1])
    assert (
        reason(kept, QUICK)
        == "keeps its submodel: 10.3 s per round (limit 10 s), too close to change"
    )


def test_reasons_name_pins_and_the_choice_of_the_method() -> None:
    pinned = Candidate("pinned", device("pinned", 0.01), Standing(step=5.0), pin=Pin(MENU[-1]))
    assert judge(pinned)[0].decision.reason == "pinned by assign.submodels"
    own = decide(MENU, RECIPE, [QUICK], make_config(1.15), lambda index, candidate, can: can[0])[
        0
    ].decision
    assert (
        own.reason
        == f"chosen by the method from 9 affordable submodels; the largest is {NAMES[-1]}"
    )


def test_reasons_of_agents_that_are_not_selected() -> None:
    made = mark_undrawn(judge(QUICK)[0].decision, "not sampled (0.25)")
    assert not made.asked
    assert made.reason.startswith(
        f"not sampled (0.25); it would get {NAMES[-1]}: the largest submodel"
    )
    away = decide_absent({"a": "paused: on battery"})["a"]
    assert (away.submodel, away.asked, away.reason) == (
        "",
        False,
        "not selected: paused: on battery",
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0412, "41.2 ms"), (0.9, "900 ms"), (12.34, "12.3 s"), (4321.0, "4321 s")],
)
def test_seconds_for_people(seconds: float, words: str) -> None:
    assert human_seconds(seconds) == words


@pytest.mark.parametrize("slow_codec", ["", "int8"])
def test_a_slow_uplink_gets_the_codec_with_which_it_trains_more(slow_codec: str) -> None:
    size, deadline = 4 * cost(MENU[-1]).parameters, 30.0
    uplink = 2 * size / (1.2 * (deadline - 10.0))  # the weights and a raw update take too long
    slow = replace(device("slow"), uplink=uplink, codecs=("raw", "int8"), protocol=4)
    lacking = replace(slow, agent="lacking", codecs=("raw",))
    config = Config(fleet=Fleet(deadline=deadline), wire=Wire(slow_codec=slow_codec))
    candidates = [QUICK, *(Candidate(one.agent, one) for one in (slow, lacking))]
    quick, found, without = decide(MENU, RECIPE, candidates, config, largest)
    assert (quick.submodel, quick.codec) == (MENU[-1], "raw")
    assert without.submodel != MENU[-1]
    if slow_codec:
        assert (found.submodel, found.codec) == (MENU[-1], "int8")
        assert "updates in int8, because its uplink is slow" in found.decision.reason
    else:
        assert (found.submodel, found.codec) == (without.submodel, "raw")


def test_one_slow_round_of_the_quickest_agent_moves_only_that_agent() -> None:
    slowed = Candidate("quick", device("quick"), Standing(trained=2, step=3.0, usual=1.2))
    other = Candidate("other", device("other", 0.5))
    before, after = judge(QUICK, other, slack=1.15), judge(slowed, other, slack=1.15)
    assert before[0].submodel == MENU[-1]
    assert after[0].submodel is not None
    assert cost(after[0].submodel).parameters < cost(MENU[-1]).parameters / 2
    assert [v[1].bounds.seconds for v in (before, after)] == pytest.approx([11.5, 1.2 * 11.5])
    assert after[0].decision.seconds <= 1.2 * 11.5


@pytest.mark.parametrize("honest", [2, 9])
def test_a_claim_of_slow_steps_and_much_memory_slows_no_round_down_much(honest: int) -> None:
    """Only the liar can hold the largest submodel, so its claim of the time is the only one."""
    others = [Candidate(f"a{i}", device(f"a{i}", memory=10**6)) for i in range(honest)]
    liar = Candidate("liar", device("liar", 1e-9, 2**61))
    found, alone = judge(*others, liar, slack=1.15), judge(*others, slack=1.15)
    assert found[0].bounds.seconds <= 4 * 1.15 * max(o.seconds for o in alone[0].offers)


@pytest.mark.parametrize("honest", [1, 2, 9])
@pytest.mark.parametrize("memory", [10**9, 10**15], ids=["equal memory", "more memory"])
def test_a_claim_of_impossible_speed_shrinks_no_other_submodel_much(
    honest: int, memory: int
) -> None:
    """The others keep what a device that is really four times as fast would leave them."""
    others = [Candidate(f"a{i}", device(f"a{i}")) for i in range(honest)]
    liar = Candidate("liar", device("liar", 1e12, memory))
    fast = Candidate("fast", device("fast", 4.0))
    found, expected = judge(*others, liar, slack=1.15), judge(*others, fast, slack=1.15)
    for verdict, fair in zip(found[:-1], expected[:-1], strict=True):
        assert verdict.submodel is not None
        assert fair.submodel is not None
        assert cost(verdict.submodel).parameters >= cost(fair.submodel).parameters
        assert verdict.submodel != MENU[0]


def free(name: str, *timed: Submodel, **missing: str) -> Candidate:
    """Return an agent that trains with graphs, and has trained these submodels in a second per
    step.
    """
    profile = replace(device(name), timings=(), capabilities=("graphs",))
    timings = tuple(Timing(submodel, 32, 1.0) for submodel in timed)
    return Candidate(name, profile, Standing(timings=timings), missing=missing)


def test_an_agent_of_unknown_speed_begins_with_the_smallest_submodel() -> None:
    made = judge(free("new"), QUICK)
    assert [one.decision.submodel for one in made] == [NAMES[0], NAMES[-1]]
    assert made[0].decision.reason == (
        "the smallest that it can train, since its speed is not known yet"
    )
    assert made[1].bounds.seconds == 10.0, "the pace is that of the others"
    assert made[0].decision.seconds > 60.0
    known = judge(free("known", MENU[0]), free("too", MENU[0]))[0]
    assert known.decision.submodel == NAMES[-1]


def test_an_agent_gets_no_submodel_whose_graphs_are_missing() -> None:
    last = {NAMES[-1]: "its training graphs are being exported"}
    made = judge(free("a", MENU[0], **last), QUICK)[0].decision
    assert made.submodel in NAMES[:-1]
    second = judge(free("b", **{NAMES[0]: "no graph"}))[0].decision
    assert second.submodel == NAMES[1]
    none = free("c", MENU[0], **dict.fromkeys(NAMES, "no graph"))
    assert reason(none).startswith(f"excluded for now: {NAMES[0]}: no graph")
    pinned = replace(none, pin=Pin(MENU[-1]))
    assert judge(pinned)[0].submodel is None
    assert judge(pinned)[0].decision.reason.endswith(f"pinned to {NAMES[-1]}: no graph")


def test_the_reason_names_the_graphs_that_a_larger_submodel_lacks() -> None:
    why = reason(free("a", MENU[0], **dict.fromkeys(NAMES[1:], "no graph")))
    assert why == f"the largest with training graphs; {NAMES[1]}: no graph"
