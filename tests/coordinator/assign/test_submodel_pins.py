"""People fix the submodels of agents, before a run and while it is in progress."""

from __future__ import annotations

import pytest

from coordinator.assign.submodel_pins import Pin, match_pins
from federated.errors import ConfigError
from tests.coordinator.assign.test_affordable_submodels import MENU

SMALL, LARGE = MENU[0], MENU[-1]


def test_the_first_matching_pattern_counts() -> None:
    pins = match_pins(MENU, {"a": "w1-d4.4.4", "d0[0-4]": SMALL.name, "d*": LARGE.name})
    found = [pins.find(agent) for agent in ("a", "d03", "d05", "b")]
    assert found == [Pin(LARGE), Pin(SMALL), Pin(LARGE), None]


def test_a_submodel_that_the_menu_lacks_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match=r"assign.submodels: a: unknown submodel 'w1-d4'; did you mean w1-d4.4.4"
    ):
        match_pins(MENU, {"a": "w1-d4"})


def test_a_requested_pin_precedes_the_configuration() -> None:
    pins = match_pins(MENU, {"*": LARGE.name})
    requested = {"a": SMALL.name, "b": "a submodel of an earlier menu"}
    assert pins.find("a", requested) == Pin(SMALL, "coordinator pin")
    assert pins.find("b", requested) == Pin(LARGE)
