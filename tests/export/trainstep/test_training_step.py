"""A step as a function of tensors moves a network as the training loop does, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.training_graphs.step_and_pytorch_training import (
    Trial,
    train_with_pytorch,
    train_with_step,
)
from export.trainstep.training_step import TrainingStep, make_step
from federated.errors import ExportError
from federated.task import Recipe
from models.menu import menu
from models.named_network import network
from models.submodel import Moments, Submodel
from models.submodel_building import full
from tests.support.smallest_networks import small

BASE = Recipe(epochs=2, batch=4, lr=0.05, decay=0.01)
RECIPES = {
    "sgd": BASE,
    "adam": replace(BASE, optimiser="adam", lr=0.01),
    "adamw": replace(BASE, optimiser="adamw", lr=0.01),
    "clip": replace(BASE, clip=0.1),
    "clip that is never reached": replace(BASE, clip=1e9),
    "masked": replace(BASE, masked=True),
    "pull": replace(BASE, pull=0.3),
    "feddyn": replace(BASE, pull=0.3, variate="feddyn"),
    "scaffold": replace(BASE, variate="scaffold", clip=0.5),
    "tracked": replace(BASE, norm="tracked"),
    "frozen": replace(BASE, frozen=("linear.weight", "stem.weight")),
}


def narrow(family: str, features: tuple[str, ...] = ()) -> Submodel:
    return menu(small(family), (0.5,), (1,), features)[0]


def compare(trial: Trial) -> None:
    function = trial.make_function()
    assert isinstance(function.compute, TrainingStep)
    function.compute.answers.net.to(trial.dtype)
    wanted = train_with_pytorch(trial, function)
    found = train_with_step(trial, function, function.compute)
    assert len(found.losses) == 4, "two passes of a batch of 4 and one of 3 examples"
    assert found.losses == pytest.approx(wanted.losses, rel=1e-9)
    assert found.tensors.keys() <= wanted.tensors.keys()
    assert found.distance(wanted) < 1e-9


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_term_of_a_recipe(recipe) -> None:
    compare(Trial(narrow("preresnet"), recipe))


@pytest.mark.parametrize(
    "family", ["densenet", "efficientnet", "lenet", "mlp", "mobilenet", "resnet1d", "vgg", "vit"]
)
def test_every_family(family) -> None:
    compare(Trial(narrow(family), BASE))


@pytest.mark.parametrize("preset", ["small", "causal"])
def test_text(preset) -> None:
    made = network(f"transformer-{preset}", (8,), 12, target="token")
    compare(Trial(menu(made, (0.5,), (1,))[0], replace(BASE, masked=True)))


def test_exits() -> None:
    compare(Trial(full(small("resnet"), ("exits",)), BASE))


@pytest.mark.parametrize("variant", ["code", "clean"])
def test_the_last_exit_teaches_the_others_as_scalefl_does(variant) -> None:
    options = {"gamma": 0.5, "temperature": 3.0, "variant": variant}
    recipe = replace(BASE, hook="scalefl", options=options)
    compare(Trial(full(small("resnet"), ("exits-conv", "scaler-always")), recipe))


def test_exits_teach_each_other_as_depthfl_does() -> None:
    recipe = replace(BASE, hook="depthfl", options={"weight": 0.5}, pull=0.3, variate="feddyn")
    compare(Trial(full(small("resnet"), ("exits",)), replace(recipe, masked=True)))


def test_scaled_submodel_with_learnable_steps() -> None:
    compare(Trial(narrow("preresnet", ("scaler", "steps")), BASE))


def test_values_in_raw_units() -> None:
    moments = Moments(shift=(0.5, -1.0), scale=(2.0, 3.0))
    made = network("mlp", (5,), 2, moments, "value")
    compare(Trial(full(made), BASE))


def test_hooks_are_refused() -> None:
    with pytest.raises(ExportError, match="hooks of 'moon' requires PyTorch"):
        make_step(narrow("mlp"), replace(BASE, hook="moon"), 4)


def test_only_parameters_that_a_step_reaches_move() -> None:
    made = make_step(full(network("tests.support.user_networks:Unused", (6,), 3)), BASE, 4)
    moved = {name for name in made.inputs if name.startswith("m.")}
    assert moved == {"m.net.hidden.weight", "m.net.head.weight", "m.net.head.bias"}
