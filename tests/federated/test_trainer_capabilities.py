"""The capabilities that recipes require of a trainer."""

from __future__ import annotations

from typing import get_args

import pytest

from federated.method import configure
from federated.methods.catalogue import METHODS, find_method
from federated.task import Optimiser, Recipe
from federated.trainer_capabilities import (
    CAPABILITIES,
    describe_missing,
    list_required_capabilities,
    name_hook,
)
from federated.training.training_step import OPTIMISERS
from models.named_network import network
from models.submodel_building import initial
from tests.support.small_tasks import PYTORCH


@pytest.mark.parametrize(
    ("recipe", "needed"),
    [
        (Recipe(), set()),
        (Recipe(decay=0.1, epochs=3, steps=2, scores=True, labels=True), set()),
        (Recipe(optimiser="adam", clip=1.0), {"adam", "clip"}),
        (Recipe(optimiser="adamw", masked=True), {"adamw", "masked"}),
        (Recipe(pull=0.1, variate="feddyn"), {"pull", "feddyn"}),
        (Recipe(variate="scaffold", frozen=("a",)), {"scaffold", "frozen"}),
        (Recipe(keep=("a",), norm="tracked"), {"keep", "tracked"}),
        (Recipe(hook="moon"), {"hook:moon"}),
    ],
)
def test_a_recipe_requires_what_plain_sgd_does_not_do(recipe: Recipe, needed: set[str]) -> None:
    assert list_required_capabilities(recipe) == needed


def test_every_optimiser_but_sgd_is_a_capability_and_pytorch_has_them_all() -> None:
    names = set(get_args(Optimiser))
    assert names == {"sgd"} | (names & CAPABILITIES.keys())
    assert names == OPTIMISERS.keys()


def test_missing_capabilities_are_explained() -> None:
    said = describe_missing({"clip", "hook:moon", "pull"}, {"pull"})
    hook = "hook:moon (code that runs on devices)"
    assert said == f"clip ({CAPABILITIES['clip']}), {hook}"
    assert describe_missing({"pull"}, CAPABILITIES) == ""


@pytest.mark.parametrize("name", METHODS)
def test_pytorch_can_follow_the_recipes_of_every_method(name: str) -> None:
    chosen, net = find_method(name), network("preresnet", (1, 8, 8), 4)
    settings = configure(chosen, {})
    menu = chosen.menu(net, settings)
    state = chosen.start(initial(net, 0, chosen.features), menu, settings)
    for submodel in menu:
        recipe = chosen.recipe(state, submodel)
        assert not describe_missing(list_required_capabilities(recipe), PYTORCH.capabilities)
        assert not recipe.hook or name_hook(recipe.hook) in list_required_capabilities(recipe)
