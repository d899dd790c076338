"""Submodels that an agent can afford, from its measurements and earlier rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coordinator.assign.affordable_submodels import (
    UNENCODED,
    Bounds,
    Codecs,
    find_affordable,
    find_bounds,
    make_offers,
)
from coordinator.assign.agent_track_record import Setback, Standing
from coordinator.assign.selection import draw_names, make_generator
from federated.task import Card, Profile, Recipe, Timing
from federated.training.time_prediction import step_seconds
from federated.wire.codecs.fp16 import FP16
from federated.wire.codecs.raw import RAW
from models.cost import cost
from models.menu import menu
from models.named_network import network
from models.step_workload import work
from models.submodel import Submodel

NETWORK = network("preresnet", (1, 8, 8), 10)
MENU = menu(NETWORK, (0.5, 0.75, 1.0), (2, 3, 4))
TIMED = menu(NETWORK, (0.25, 0.5), (2, 4))
CARD = Card("digits", (1, 8, 8), "uint8", 10, 320, 80, (5.0,), (6.0,))
RECIPE = Recipe(epochs=2, batch=32)


def law(submodel: Submodel, speed: float = 1.0) -> float:
    """Return the seconds of a step on a device with known costs: arithmetic, memory, and a fixed
    price per block.
    """
    what = cost(submodel, 32)
    return (
        what.macs * 32 * 2e-11
        + work(submodel, 32).moved * 1e-10
        + 6e-4 * sum(map(sum, submodel.mask))
    ) / speed


def profile(speed: float = 1.0, memory: int = 10**9, uplink: float = 0.0) -> Profile:
    timings = tuple(Timing(s, 32, law(s, speed)) for s in TIMED)
    return Profile("a", "h", "s", speed, memory, uplink, 2**18, "torch", CARD, timings)


def test_the_time_of_a_step_is_predicted_from_small_submodels() -> None:
    for submodel in MENU:
        assert step_seconds(profile().timings, submodel, 32) == pytest.approx(
            law(submodel), rel=0.3
        )
    assert step_seconds(profile().timings, TIMED[0], 32) == law(TIMED[0]), (
        "what was timed is not predicted"
    )


def test_a_round_takes_its_steps_and_transfers() -> None:
    offer = make_offers(profile(uplink=1e6), [TIMED[0]], RECIPE, 0.6, UNENCODED)[0]
    assert offer.step == law(TIMED[0])
    assert offer.seconds == pytest.approx(2 * 10 * law(TIMED[0]) + 2 * cost(TIMED[0]).bytes / 1e6)


@pytest.mark.parametrize("codecs", [Codecs(RAW, FP16), Codecs(FP16, RAW)])
def test_a_codec_shortens_only_its_transfer(codecs: Codecs) -> None:
    """Four bytes of each weight one way and two the other, at 1 MB/s."""
    raw, half = (
        make_offers(profile(uplink=1e6), [TIMED[0]], RECIPE, 0.6, one)[0]
        for one in (UNENCODED, codecs)
    )
    assert raw.seconds - half.seconds == pytest.approx(2 * cost(TIMED[0]).parameters / 1e6)


def test_slower_devices_get_smaller_submodels() -> None:
    fleet = [
        make_offers(profile(speed), MENU, RECIPE, 0.6, UNENCODED) for speed in (1.0, 0.7, 0.5, 0.2)
    ]
    allowed = find_bounds(fleet, RECIPE, 1.15, 0)
    largest = [find_affordable(menu, allowed)[-1] for menu in fleet]
    sizes = [cost(s).parameters for s in largest]
    assert largest[0] == MENU[-1]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) >= 3
    equal = [make_offers(profile(1.0), MENU, RECIPE, 0.6, UNENCODED) for _ in range(4)]
    assert {find_affordable(menu, find_bounds(equal, RECIPE, 1.15, 0))[-1] for menu in equal} == {
        MENU[-1]
    }


def test_a_deadline_counts_the_whole_round() -> None:
    menu = make_offers(profile(), MENU, RECIPE, 0.6, UNENCODED)
    limit = menu[4].seconds
    assert find_bounds([menu], RECIPE, 1.15, limit) == Bounds(np.inf, limit, paced=False)
    assert [o.submodel for o in menu if o.seconds <= limit] == list(
        find_affordable(menu, Bounds(np.inf, limit))
    )


def test_the_smallest_is_affordable_if_none_is_quick_and_none_if_none_fits() -> None:
    menu = make_offers(profile(), MENU, RECIPE, 0.6, UNENCODED)
    assert find_affordable(menu, Bounds(0.0, 0.0)) == (MENU[0],)
    tight = make_offers(profile(memory=1000), MENU, RECIPE, 0.6, UNENCODED)
    assert find_affordable(tight, Bounds()) == ()


def test_memory_limits_the_affordable_submodels() -> None:
    half = int(cost(MENU[3], 32).memory / 0.6) + 1
    given = find_affordable(
        make_offers(profile(memory=half), MENU, RECIPE, 0.6, UNENCODED), Bounds()
    )
    assert MENU[3] in given
    assert all(cost(s, 32).memory <= cost(MENU[3], 32).memory for s in given)


def test_pace_is_per_step_with_epochs_and_per_round_with_fixed_steps() -> None:
    few = replace(CARD, examples=64)
    fleet = [
        make_offers(profile(), MENU, RECIPE, 0.6, UNENCODED),
        make_offers(replace(profile(), data=few), MENU, RECIPE, 0.6, UNENCODED),
    ]
    full = fleet[0][-1]
    assert find_bounds(fleet, RECIPE, 1.5, 0) == Bounds(step=pytest.approx(1.5 * full.step)), (
        "who has few data does not hurry the other"
    )
    fixed = replace(RECIPE, steps=4)
    fleet = [make_offers(profile(speed), MENU, fixed, 0.6, UNENCODED) for speed in (1.0, 0.5)]
    assert find_bounds(fleet, fixed, 1.5, 0) == Bounds(seconds=pytest.approx(1.5 * 4 * full.step))


def test_a_quick_device_with_little_memory_does_not_set_the_pace() -> None:
    """A fast device that can hold only the smallest submodel does not shorten the round: the
    devices with the largest one set its duration.
    """
    small = int(cost(MENU[0], 32).memory / 0.6) + 1
    fleet = [
        make_offers(profile(4.0, memory=small), MENU, RECIPE, 0.6, UNENCODED),
        make_offers(profile(1.0), MENU, RECIPE, 0.6, UNENCODED),
    ]
    assert [o.fits for o in fleet[0]] == [True] + [False] * 8
    allowed = find_bounds(fleet, RECIPE, 1.0, 0)
    assert allowed == Bounds(step=fleet[1][-1].step)
    assert [find_affordable(menu, allowed)[-1] for menu in fleet] == [MENU[0], MENU[-1]]
    assert (
        find_bounds(
            [make_offers(profile(memory=1000), MENU, RECIPE, 0.6, UNENCODED)], RECIPE, 1.0, 0
        )
        == Bounds()
    )


def test_earlier_rounds_correct_time_transfer_and_memory() -> None:
    shown = Standing(step=2.0, memory=1.5, rate=1e5, extra=0.25)
    before, after = (
        make_offers(profile(uplink=1e6), MENU, RECIPE, 0.6, UNENCODED)[0],
        make_offers(profile(uplink=1e6), MENU, RECIPE, 0.6, UNENCODED, shown)[0],
    )
    assert after.step == 2 * before.step
    assert after.memory == pytest.approx(1.5 * before.memory, abs=1)
    assert after.seconds == pytest.approx(
        20 * after.step + 2 * 0.25 + 2 * cost(MENU[0]).bytes / 1e5
    )


def test_running_out_of_memory_bars_submodels_as_large() -> None:
    shown = Standing(setbacks=(Setback(MENU[4].name, "memory", 3, "ran out of memory"),))
    menu = make_offers(profile(), MENU, RECIPE, 0.6, UNENCODED, shown)
    barred = {o.submodel.name for o in menu if o.barred}
    assert barred == {o.submodel.name for o in menu if o.memory >= menu[4].memory}
    assert MENU[4].name in barred
    assert find_affordable(menu, Bounds())[-1].name not in barred
    proved = replace(shown, setbacks=(replace(shown.setbacks[0], proofs=0),))
    assert not any(o.barred for o in make_offers(profile(), MENU, RECIPE, 0.6, UNENCODED, proved))
    nothing = Standing(setbacks=(Setback(MENU[0].name, "memory", 3, "ran out of memory"),))
    assert (
        find_affordable(make_offers(profile(), MENU, RECIPE, 0.6, UNENCODED, nothing), Bounds())
        == ()
    )


def test_a_late_update_bars_submodels_as_slow_but_never_the_quickest() -> None:
    shown = Standing(setbacks=(Setback(MENU[4].name, "late", 3, "was late"),))
    menu = make_offers(profile(), MENU, RECIPE, 0.6, UNENCODED, shown)
    assert {o.submodel for o in menu if o.barred} == {
        o.submodel for o in menu if o.seconds >= menu[4].seconds
    }
    again = Standing(setbacks=(Setback(MENU[4].name, "late", 4, "was late", share=0.5),))
    assert {
        o.submodel for o in make_offers(profile(), MENU, RECIPE, 0.6, UNENCODED, again) if o.barred
    } > {o.submodel for o in menu if o.barred}
    hopeless = Standing(setbacks=(Setback(MENU[0].name, "late", 4, "was late", share=0.01),))
    assert find_affordable(
        make_offers(profile(), MENU, RECIPE, 0.6, UNENCODED, hopeless), Bounds()
    ) == (MENU[0],)


def test_agents_keep_their_submodel_in_close_cases() -> None:
    menu = make_offers(profile(), MENU, RECIPE, 0.6, UNENCODED)
    ordered = sorted(menu, key=lambda o: o.step)
    mine, next_one = ordered[4], ordered[5]
    slightly = Bounds(step=mine.step * 0.97)
    assert mine.submodel not in find_affordable(menu, slightly)
    assert mine.submodel in find_affordable(menu, slightly, mine), "3 % too slow"
    assert mine.submodel not in find_affordable(menu, Bounds(step=mine.step * 0.9), mine)
    just = Bounds(step=next_one.step * 1.01)
    assert next_one.submodel in find_affordable(menu, just)
    assert next_one.submodel not in find_affordable(menu, just, mine), "1 % to spare"
    strict = Bounds(seconds=mine.seconds * 0.97, paced=False)
    assert mine.submodel not in find_affordable(menu, strict, mine), "a deadline is a deadline"


def test_selection_draws_a_fraction_without_replacement_and_repeats() -> None:
    names = [f"a{i}" for i in range(10)]
    drawn = draw_names(names, 3, make_generator(0, 1, 5))
    assert len(set(drawn)) == 3
    assert drawn == sorted(drawn) == draw_names(list(reversed(names)), 3, make_generator(0, 1, 5))
    assert any(draw_names(names, 3, make_generator(0, 1, r)) != drawn for r in range(5))
