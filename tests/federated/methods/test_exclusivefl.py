"""AllSmall, ExclusiveFL, and FedAvg's sharing within an architecture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from federated.engine.aggregate import Total, fold
from federated.errors import ConfigError, Unknown
from federated.method import configure
from federated.methods.catalogue import METHODS, find_method
from federated.task import Update
from models.named_network import network
from models.submodel_building import initial, shapes
from tests.support.memory_federation import Member, digits, federate

NET = network("mlp", (4,), 3)
SIZES = {"method.widths": [0.25, 1.0], "model.name": "resnet-small", "method.depths": [1]}


def start(name, **given):
    chosen = find_method(name)
    settings = configure(chosen, {"norm": "static", **given})
    menu = chosen.menu(NET, settings)
    return chosen, menu, chosen.start(initial(NET, 0), menu, settings)


def played(chosen, state, *updates):
    """Return the state after (submodel, constant, examples) each."""
    total = Total()
    for index, (submodel, value, samples) in enumerate(updates):
        tensors = {name: torch.full(shape, value) for name, shape in shapes(submodel).items()}
        one = Update("r", 1, 0, str(index), "train", submodel, "0", samples, 1, tensors)
        assert fold(total, chosen.parts(state, chosen.place(state, submodel), one), (index,))
    return chosen.finish(state, total, np.random.default_rng(0))


def view(chosen, state, submodel):
    return chosen.dispatch(state, chosen.place(state, submodel))


@pytest.mark.parametrize(
    ("name", "given"),
    [("exclusivefl", {}), ("fedavg", {"sharing": "architecture", "widths": [0.2, 1.0]})],
)
def test_sizes_learn_nothing_from_each_other(name, given):
    """Small: (1 x 2 + 3 x 6) / 4 = 5; large: 8, alone."""
    chosen, (weak, strong), state = start(name, **given)
    after = played(chosen, state, (weak, 2.0, 1), (strong, 8.0, 100), (weak, 6.0, 3))
    assert all(bool((value == 5).all()) for value in view(chosen, after, weak).values())
    assert all(bool((value == 8).all()) for value in view(chosen, after, strong).values())


def test_an_untrained_size_is_still_the_corner_of_the_initial_network():
    chosen, (weak, strong), state = start("exclusivefl")
    after = played(chosen, state, (strong, 8.0, 1))
    first = initial(NET, 0)
    for name, value in view(chosen, after, weak).items():
        assert torch.equal(value, first[name][tuple(map(slice, value.shape))])


def test_a_size_continues_from_its_own_weights():
    chosen, (weak, strong), state = start("exclusivefl")
    state = played(chosen, state, (weak, 2.0, 1), (strong, 8.0, 1))
    after = played(chosen, state, (strong, 9.0, 1))
    assert all(bool((value == 2).all()) for value in view(chosen, after, weak).values())


def test_sharing_by_coverage_is_the_default():
    chosen, (weak, strong), state = start("fedavg", widths=[0.25, 1.0])
    after = played(chosen, state, (weak, 2.0, 1), (strong, 8.0, 1))
    assert view(chosen, after, strong)["linear.bias"].tolist() == [5.0] * 3
    assert after.tensors.keys() == state.tensors.keys()


def test_everyone_gets_the_smallest():
    """Every device gets the smallest submodel, also if it could train a larger one; weak (1) and
    strong (3) devices average: (1 x 1 + 3 x 5) / 4 = 4.
    """
    chosen, menu, state = start("allsmall", widths=[1.0, 0.5, 0.25])
    assert [submodel.width for submodel in menu] == [0.25]
    after = played(chosen, state, (menu[0], 1.0, 1), (menu[0], 5.0, 3))
    assert all(bool((value == 4).all()) for value in view(chosen, after, menu[0]).values())
    assert torch.equal(after.tensors["norm.weight"][16:], state.tensors["norm.weight"][16:])


def test_the_smallest_is_so_in_width_and_depth():
    chosen = find_method("allsmall")
    menu = chosen.menu(NET, configure(chosen, {"widths": [0.5, 1.0], "depths": [1, 2]}))
    assert [submodel.name for submodel in menu] == ["w0.5-d1"]


def test_other_networks_share_nothing():
    """The run's network and a LeNet: each starts from weights of its own, and trains alone."""
    chosen, net = find_method("exclusivefl"), network("resnet-small", (1, 28, 28), 10)
    settings = configure(chosen, {"models": ["lenet-5"], "norm": "static"})
    menu = weak, strong = chosen.menu(net, settings)
    assert [submodel.name for submodel in menu] == ["lenet-5-w1-d1.1", "w1-d2.2.2"]
    state = chosen.start(initial(net, 0), menu, settings)
    assert chosen.assign(state, None, menu, np.random.default_rng(0)) == strong
    lenet = initial(weak.network, 0)
    assert all(torch.equal(value, lenet[name]) for name, value in view(chosen, state, weak).items())
    after = played(chosen, state, (weak, 2.0, 1), (strong, 8.0, 5), (weak, 6.0, 3))
    assert all(bool((value == 5).all()) for value in view(chosen, after, weak).values())
    trained = view(chosen, after, strong)
    assert all(bool((trained[name] == 8).all()) for name in shapes(strong))


def test_the_smallest_may_be_of_another_family():
    chosen, net = find_method("allsmall"), network("resnet-small", (1, 28, 28), 10)
    settings = configure(chosen, {"models": ["vgg-9-small", "lenet-5"], "norm": "static"})
    menu = chosen.menu(net, settings)
    assert [submodel.name for submodel in menu] == ["lenet-5-w1-d1.1"]
    state = chosen.start(initial(net, 0), menu, settings)
    assert not any(True for _ in chosen.inactive(menu, settings))
    after = played(chosen, state, (menu[0], 1.0, 1), (menu[0], 5.0, 3))
    assert after.tensors.keys() == state.tensors.keys()
    assert all(bool((value == 4).all()) for value in view(chosen, after, menu[0]).values())


@pytest.mark.parametrize("name", ["allsmall", "fedrolex", "fjord", "flexifed", "heterofl"])
def test_a_method_with_fixed_sharing_has_no_setting_for_it(name):
    with pytest.raises(Unknown, match=f"unknown {name} setting 'sharing'"):
        configure(find_method(name), {"sharing": "architecture"})


@pytest.mark.parametrize(
    "name", [name for name in METHODS if {"sharing", "widths"} <= find_method(name).settings.keys()]
)
def test_where_it_can_be_set_sharing_within_an_architecture_keeps_sizes_apart(name):
    """With this setting, the updates of one size never change another size."""
    chosen = find_method(name)
    settings = configure(
        chosen, {"norm": "static", "sharing": "architecture", "widths": [0.5, 1.0]}, rounds=3
    )
    net = network("resnet-small", (1, 8, 8), 3)
    menu = chosen.menu(net, settings)
    state = chosen.start(initial(net, 0, chosen.features), menu, settings)
    received, total = view(chosen, state, menu[-1]), Total()
    sent = {local: value + 0.25 for local, value in received.items()}
    one = Update("r", 1, 0, "a", "train", menu[-1], "0", 5, 2, sent, {"labels": [0, 1, 2]})
    assert fold(total, chosen.parts(state, chosen.place(state, menu[-1]), one), ("a",))
    after = chosen.finish(state, total, np.random.default_rng(0))
    for local, value in view(chosen, state, menu[0]).items():
        if "/" not in local:
            assert torch.equal(view(chosen, after, menu[0])[local], value), local
    assert not torch.equal(view(chosen, after, menu[-1])["linear.bias"], received["linear.bias"])


def test_sharing_is_coverage_or_architecture():
    with pytest.raises(ConfigError, match="expected one of coverage, architecture"):
        configure(find_method("fedavg"), {"sharing": "everyone"})
    with pytest.raises(ConfigError, match="expected one of architecture, found 'coverage'"):
        configure(find_method("exclusivefl"), {"sharing": "coverage"})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("allsmall", 1), ("exclusivefl", 2)])
def test_a_fleet_learns_digits_with_every_size(tmp_path: Path, name: str, count: int) -> None:
    fleet = [Member(f"a{i}", digits(i, 3)) for i in range(3)]
    small, large = "w0.25-d1.1.1", "w1-d1.1.1"
    pins = {} if name == "allsmall" else {"a0": small, "a1": small, "a2": large}
    done = federate(
        tmp_path,
        fleet,
        {
            **SIZES,
            "method.name": name,
            "rounds": 4,
            "train.epochs": 1,
            "evaluate.every": 4,
            "assign.submodels": pins,
        },
    )
    assert len(set(done.result.history.assigned.values())) == count
    assert all(np.isfinite(s.loss) for s in done.result.scores)
    central = {s.submodel: s.accuracy for s in done.result.scores if s.view == "central"}
    assert central.keys() == ({small} if count == 1 else {small, large})
    assert min(central.values()) > 0.3
