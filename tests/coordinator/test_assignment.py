"""What an agent can afford follows from what it measured."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.assignment import affordable, offers, pace, pinned
from coordinator.selection import generator, select
from federated.errors import ConfigError
from federated.prediction import step_seconds
from federated.task import Card, Profile, Recipe, Timing
from models.cost import cost
from models.families import menu, network
from models.submodel import Submodel

NETWORK = network("preresnet", (1, 8, 8), 10)
MENU = menu(NETWORK, (0.5, 0.75, 1.0), (2, 3, 4))
TIMED = menu(NETWORK, (0.25, 0.5), (2, 4))
CARD = Card("digits", (1, 8, 8), "uint8", 10, 320, 80, (5.0,), (6.0,))
RECIPE = Recipe(epochs=2, batch=32)


def law(submodel: Submodel, speed: float = 1.0) -> float:
    """Seconds of a step on a device of which we know how it works: arithmetic, memory, and a fixed price per block."""
    what = cost(submodel, 32)
    return (what.macs * 32 * 2e-11 + what.activations * 32 * 1e-9 + 6e-4 * sum(map(sum, submodel.mask))) / speed


def profile(speed: float = 1.0, memory: int = 10**9, uplink: float = 0.0) -> Profile:
    timings = tuple(Timing(s, 32, law(s, speed)) for s in TIMED)
    return Profile("a", "h", "s", speed, memory, uplink, 2**18, "torch", CARD, timings)


def test_the_time_of_a_step_is_predicted_from_small_submodels() -> None:
    for submodel in MENU:
        assert step_seconds(profile().timings, submodel, 32) == pytest.approx(law(submodel), rel=0.1)
    assert step_seconds(profile().timings, TIMED[0], 32) == law(TIMED[0]), "what was timed is not predicted"


def test_a_round_is_its_steps_and_its_transfers() -> None:
    offer = offers(profile(uplink=1e6), [TIMED[0]], RECIPE, 0.6)[0]
    assert offer.step == law(TIMED[0])
    assert offer.seconds == pytest.approx(2 * 10 * law(TIMED[0]) + 2 * cost(TIMED[0]).bytes / 1e6)


def test_slower_devices_get_smaller_submodels() -> None:
    fleet = [offers(profile(speed), MENU, RECIPE, 0.6) for speed in (1.0, 0.7, 0.5, 0.2)]
    step = pace(fleet, 1.15)
    largest = [affordable(menu, step=step, deadline=np.inf)[-1] for menu in fleet]
    sizes = [cost(s).parameters for s in largest]
    assert largest[0] == MENU[-1]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) >= 3
    equal = [offers(profile(1.0), MENU, RECIPE, 0.6) for _ in range(4)]
    assert {affordable(menu, step=pace(equal, 1.15), deadline=np.inf)[-1] for menu in equal} == {MENU[-1]}


def test_a_deadline_counts_the_whole_round() -> None:
    menu = offers(profile(), MENU, RECIPE, 0.6)
    limit = menu[4].seconds
    assert [o.submodel for o in menu if o.seconds <= limit] == list(affordable(menu, step=np.inf, deadline=limit))


def test_the_smallest_is_given_where_none_is_quick_enough_and_none_where_none_fits() -> None:
    menu = offers(profile(), MENU, RECIPE, 0.6)
    assert affordable(menu, step=0.0, deadline=0.0) == (MENU[0],)
    tight = offers(profile(memory=1000), MENU, RECIPE, 0.6)
    assert affordable(tight, step=np.inf, deadline=np.inf) == ()


def test_memory_bounds_what_is_given() -> None:
    half = int(cost(MENU[3], 32).memory / 0.6) + 1
    given = affordable(offers(profile(memory=half), MENU, RECIPE, 0.6), step=np.inf, deadline=np.inf)
    assert MENU[3] in given
    assert all(cost(s, 32).memory <= cost(MENU[3], 32).memory for s in given)


def test_what_failed_is_not_given_again() -> None:
    menu = offers(profile(), MENU, RECIPE, 0.6)
    assert MENU[-1] not in affordable(menu, step=np.inf, deadline=np.inf, failed={MENU[-1]})


def test_pins_are_checked() -> None:
    fixed = pinned(MENU, {"a": "w1-d4.4.4", "d0[0-4]": MENU[0].name, "d*": MENU[-1].name})
    assert fixed("a") == MENU[-1]
    assert (fixed("d03"), fixed("d05"), fixed("b")) == (MENU[0], MENU[-1], None)
    with pytest.raises(ConfigError, match=r"assign.submodels: a: unknown submodel 'w1-d4'; known: w1-d4.4.4"):
        pinned(MENU, {"a": "w1-d4"})


def test_selection_draws_a_fraction_without_replacement_and_repeats() -> None:
    names = [f"a{i}" for i in range(10)]
    drawn = select(names, 0.3, generator(0, 1, 5))
    assert len(set(drawn)) == 3
    assert drawn == sorted(drawn) == select(list(reversed(names)), 0.3, generator(0, 1, 5))
    assert any(select(names, 0.3, generator(0, 1, r)) != drawn for r in range(5))
    assert select(names, 0.01, generator(0)) != []
    assert select([], 1.0, generator(0)) == []
