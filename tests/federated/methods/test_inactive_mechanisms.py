"""Settings that disable a method's own mechanism, and the reasons in the warnings."""

from __future__ import annotations

import re

import pytest
import torch

from federated.method import configure
from federated.methods.catalogue import METHODS, find_method
from federated.methods.common.inactive_mechanisms import inactive
from models.named_network import network
from models.submodel_building import initial
from tests.support.short_run import train_briefly

NET = network("preresnet", (1, 8, 8), 10)
ONE = {"widths": [1.0], "depths": [4]}

CASES = [
    ("allsmall", {"widths": [1.0]}, 20, "whole network, as under fedavg: set method.widths"),
    ("depthfl", {"distillation": 0}, 20, "distillation = 0 .*: set method.distillation above 0"),
    (
        "depthfl",
        {"ramp": 300},
        20,
        r"ramp = 300 exceeds the run's rounds \(20\), .* exceeds 0.013: set "
        r"method.ramp to a fraction such as 0.3",
    ),
    (
        "depthfl",
        {"depths": [1], "widths": [0.5, 1.0]},
        20,
        "no submodel has a second exit.*: set method.depths",
    ),
    (
        "depthfl",
        {"depths": [3]},
        20,
        "same submodel, w1-d4.4.4-exits: set method.widths or method.depths",
    ),
    ("dynamicfl", {"branches": 1}, 20, "branches = 1 .*: set method.branches"),
    *(
        (name, {"tau": 1.0}, 20, "tau = 1 is far above .*: set method.tau below 0.1")
        for name in ("fedadagrad", "fedadam", "fedyogi")
    ),
    ("fedavgm", {"server_momentum": 0}, 20, "server_momentum = 0 .*: set method.server_momentum"),
    ("fedavgm", {}, 1, "no momentum has built up .*: set rounds to at least 2"),
    ("exclusivefl", ONE, 20, "same submodel, w1-d4.4.4: set method.widths"),
    *(
        (name, {"widths": [1.0], "depths": [4]}, 20, "same submodel.*: set method.widths")
        for name in ("fedfa", "fedfa-d", "fedfa-w")
    ),
    ("fedfa", {"depths": [4]}, 20, "no block is grafted: set method.depths"),
    (
        "fedfa-d",
        {"depths": [4], "widths": [0.5, 1.0]},
        20,
        "no block is grafted: set method.depths",
    ),
    *(
        (name, {"scaling": "none"}, 20, "scaling = 'none' .*: set method.scaling")
        for name in ("fedfa", "fedfa-d", "fedfa-w")
    ),
    *(
        (name, {"choice": "zico"}, 20, "'zico' without a budget .*: set method.mac_budget")
        for name in ("fedfa", "fedfa-d", "fedfa-w")
    ),
    ("fedfa", {"choice": "zico", "mac_budget": 1}, 20, "'zico' without a budget"),
    ("fednova", {"steps": 1}, 20, "steps = 1 .* nothing to normalise: set train.steps"),
    ("fedprox", {"mu": 0}, 20, "mu = 0 .*: set method.mu above 0"),
    ("fedprox", {"steps": 1}, 20, "steps = 1 .* nothing is pulled back: set train.steps"),
    (
        "fedrolex",
        {"widths": [1.0], "depths": [2, 4]},
        20,
        r"widths \[1.0\] .* does not roll: set method.widths",
    ),
    ("fedrolex", {"widths": [1.0]}, 20, "does not roll: set method.widths"),
    ("fjord", {"kd": False}, 20, "kd = false .*: set method.kd = true"),
    (
        "fjord",
        {"widths": [0.5]},
        20,
        r"widths \[0.5\] .* no narrower width to draw: set method.widths",
    ),
    ("flexifed", {"depths": [4]}, 20, "same submodel.*: set method.widths or method.depths"),
    (
        "flexifed",
        {"widths": [0.5, 1.0], "depths": [4]},
        20,
        "no two submodels have a layer in common: set method.depths",
    ),
    ("heterofl", {"widths": [0.5]}, 20, "same submodel, w0.5-d4.4.4-scaler: set method.widths"),
    ("inclusivefl", {"beta": 0}, 20, "beta = 0 .*: set method.beta above 0"),
    (
        "inclusivefl",
        {"widths": [0.5, 1.0], "depths": [4]},
        20,
        "no larger size teaches a smaller one: set method.depths",
    ),
    *(
        (name, {"depths": [4]}, 20, "same devices train all layers .*: set method.depths")
        for name in METHODS
        if name.startswith("inco-")
    ),
    ("inco-prox", {"mu": 0}, 20, "mu = 0 .*: set method.mu above 0"),
    ("inco-moon", {"mu": 0}, 20, "mu = 0 .*: set method.mu above 0"),
    ("inco-nova", {"steps": 1}, 20, "nothing to normalise"),
    ("inco-scaffold", {}, 1, "control variates are zero"),
    ("moon", {"mu": 0}, 20, "mu = 0 .*: set method.mu above 0"),
    ("moon", {}, 1, "no earlier network .* rounds = 1: set rounds"),
    *(
        (name, {"gammas": [1.0]}, 20, "same submodel.*: set method.gammas")
        for name in METHODS
        if name.startswith("nefl-")
    ),
    *(
        (name, {"step_sizes": "fixed"}, 20, "step_sizes = 'fixed' .*: set method.step_sizes")
        for name in METHODS
        if name.startswith("nefl-")
    ),
    ("nefl-w", {"inconsistent": "none"}, 20, "inconsistent = 'none' .*: set method.inconsistent"),
    (
        "nefl-do",
        {"first_step": "one"},
        20,
        "first_step = 'one' .* nefl-d .*: set method.first_step",
    ),
    ("recipfl", {"transfer": False}, 20, "transfer = false .*: set method.transfer"),
    ("recipfl", {"widths": [1.0]}, 20, "same submodel.*: set method.widths"),
    ("scaffold", {}, 1, "control variates are zero .* rounds = 1: set rounds"),
    ("scalefl", {"gamma": 0}, 20, "gamma = 0 .*: set method.gamma above 0"),
    ("scalefl", {}, 1, "distillation has not begun .* rounds = 1: set rounds"),
    (
        "scalefl",
        {"depths": [1], "widths": [1.0]},
        20,
        "no submodel has a second exit.*: set method.depths",
    ),
    (
        "scalefl",
        {"depths": [4], "widths": [1.0]},
        20,
        "same submodel.*: set method.widths and method.depths",
    ),
    (
        "scalefl",
        {"milestones": [100, 200]},
        20,
        r"milestones \[100, 200\] come after the last of 20 rounds: set train.milestones",
    ),
    ("fedavg", {"milestones": [15, 30]}, 20, r"milestones \[30\] come after"),
]


def reasons(name, rounds=20, **given):
    chosen = find_method(name)
    settings = configure(chosen, given, rounds=rounds)
    return inactive(chosen, chosen.menu(NET, settings), settings)


@pytest.mark.parametrize("name", METHODS)
def test_by_default_every_mechanism_has_an_effect_in_20_rounds(name):
    assert reasons(name) == ()


@pytest.mark.parametrize(("name", "given", "rounds", "words"), CASES)
def test_a_mechanism_without_effect_is_reported_with_its_remedy(name, given, rounds, words):
    found = reasons(name, rounds, **given)
    assert any(re.search(words, reason) for reason in found), found


def test_every_method_can_say_so():
    assert {name for name, *_ in CASES} == set(METHODS)


@pytest.mark.parametrize(
    ("name", "given"),
    [("depthfl", {"ramp": 20}), ("scalefl", {"milestones": [7, 20]}), ("moon", {"rounds": 2})],
)
def test_a_schedule_that_ends_with_the_run_is_no_reason(name, given):
    assert reasons(name, **given) == ()


@pytest.mark.parametrize("name", ["depthfl", "moon", "scaffold", "scalefl"])
def test_an_unknown_number_of_rounds_is_no_reason(name):
    assert reasons(name, rounds=0) == ()


@pytest.mark.parametrize(
    ("name", "given", "rounds", "same", "plain"),
    [
        ("fedprox", {"mu": 0}, 2, "fedavg", {}),
        ("fedprox", {"mu": 10.0}, 2, "fedavg", {}),  # one local step
        ("fednova", {}, 2, "fedavg", {}),  # one local step
        ("scaffold", {"momentum": 0.5}, 1, "fedavg", {"momentum": 0.5}),
        ("moon", {"mu": 5.0}, 1, "moon", {"mu": 0}),
        ("fedavgm", {"server_momentum": 0}, 2, "fedavg", {}),
        ("fedavgm", {}, 1, "fedavg", {}),
        ("fjord", {"widths": [1.0]}, 2, "fjord", {"widths": [1.0], "kd": False}),
        ("nefl-do", {"first_step": "one"}, 2, "nefl-d", {}),
    ],
)
def test_where_a_mechanism_is_off_the_weights_are_those_without_it(
    tmp_path, name, given, rounds, same, plain
):
    """The helper's runs take one local step a round."""
    found, wanted = (
        train_briefly(tmp_path / "it", name, rounds, **given),
        train_briefly(tmp_path / "plain", same, rounds, **plain),
    )
    for home, value in wanted.items():
        torch.testing.assert_close(found[home], value, rtol=1e-4, atol=1e-5)


def test_only_images_are_augmented():
    words = network("mlp-small", (6,), 2)
    chosen = find_method("fedavg")
    settings = configure(chosen, {"augment": ["crop", "flip"]}, rounds=20)
    for net, augmented in ((NET, ("crop", "flip")), (words, ())):
        menu = chosen.menu(net, settings)
        state = chosen.start(initial(net, 0), menu, settings)
        assert chosen.recipe(state, menu[0]).augment == augmented
        reported = [r for r in inactive(chosen, menu, settings) if "images only" in r]
        assert len(reported) == (net is words)
