"""FedNova."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from federated.engine.aggregate import Total, fold
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.methods.fednova import normaliser
from federated.task import Update
from models.named_network import network
from models.submodel import Submodel
from models.submodel_building import full, initial
from tests.support.golden import floats, register_toy
from tests.support.memory_federation import Member, digits, federate


@pytest.fixture
def toy(monkeypatch):
    return register_toy(monkeypatch)


def begin_method(toy, **given):
    whole = toy(lambda submodel: {"w": (4 if submodel.width == 1 else 2,)})
    chosen = find_method("fednova")
    state = chosen.start(
        {"w": torch.ones(4)},
        [whole],
        configure(chosen, {"norm": "static", "momentum": 0.0, **given}),
    )
    return chosen, state, whole, Submodel(whole.network, 0.5, whole.mask)


def finish_round(chosen, state, *updates):
    total = Total()
    for index, (submodel, w, samples, steps) in enumerate(updates):
        update = Update(
            "r", 0, 0, str(index), "train", submodel, "0", samples, steps, {"w": floats(w)}, {}
        )
        assert fold(total, chosen.parts(state, chosen.place(state, submodel), update), (index,))
    return chosen.finish(state, total, np.random.default_rng(0)).tensors


@pytest.mark.parametrize("mu", [0.0, 0.25])
@pytest.mark.parametrize("rho", [0.0, 0.3, 0.9, 0.999, 1.0])
def test_the_normaliser_is_how_far_momentum_carries_unit_gradients(rho, mu):
    """Seven steps of SGD with momentum under a gradient of 1, plus mu times the distance of 0 by
    FedProx's term, and a learning rate of 0.5.
    """
    w = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimiser = torch.optim.SGD([w], lr=0.5, momentum=rho)
    for _ in range(7):
        w.grad = 1 + mu * w.detach()
        optimiser.step()
    assert 0.5 * normaliser(7, rho, 0.5 * mu) == pytest.approx(-w.item(), rel=1e-9)


def test_the_normaliser_of_fedprox_is_that_of_the_paper():
    """(1 - (1 - lr mu)^steps) / (lr mu) = (1 - 0.75^2) / 0.25 = 1.75 for two steps."""
    assert normaliser(2, 0.0, 0.25) == pytest.approx(1.75, rel=1e-12)


def test_devices_with_a_proximal_term_are_normalised_by_it(toy):
    """A learning rate of 0.5 and mu = 0.5: one and two steps count as 1 and 1.75."""
    chosen, state, whole, _ = begin_method(toy, lr=0.5, mu=0.5)
    assert chosen.recipe(state, whole).pull == 0.5
    after = finish_round(chosen, state, (whole, [2] * 4, 1, 1), (whole, [4.5] * 4, 1, 2))
    assert after["w"].tolist() == pytest.approx([1 + (1 + 2) / 2 * (1 + 1.75) / 2] * 4)


def test_each_coordinate_has_the_mean_steps_of_those_that_hold_it(toy):
    """The small device moved by 4 in 4 steps, the whole by 4 in 1: first half (1 + 4)/2 x (4 +
    1)/2, second the whole's own 4.
    """
    chosen, state, whole, half = begin_method(toy)
    after = finish_round(chosen, state, (half, [5, 5], 3, 4), (whole, [5, 5, 5, 5], 3, 1))
    assert after["w"].tolist() == [1 + 6.25, 1 + 6.25, 5.0, 5.0]


def test_examples_weigh_steps_and_their_number(toy):
    """Two devices with 3 and 1 examples: (3 x 1 + 1 x 4)/4 x (3 x 4 + 1 x 1)/4."""
    chosen, state, whole, _ = begin_method(toy)
    after = finish_round(chosen, state, (whole, [5] * 4, 3, 4), (whole, [5] * 4, 1, 1))
    assert after["w"].tolist() == [1 + 1.75 * 3.25] * 4


def test_coordinates_without_updates_do_not_change(toy):
    chosen, state, _, half = begin_method(toy)
    after = finish_round(chosen, state, (half, [5, -5], 3, 4))
    assert after["w"].tolist() == [5.0, -5.0, 1.0, 1.0]


def test_sharing_can_be_limited_to_devices_of_one_architecture(toy):
    chosen, state, whole, half = begin_method(toy, sharing="architecture")
    after = finish_round(chosen, state, (half, [5, 5], 1, 4), (whole, [3] * 4, 1, 1))
    assert (after[f"w@{half.name}"].tolist(), after[f"w@{whole.name}"].tolist()) == (
        [5.0, 5.0],
        [3.0] * 4,
    )


def test_the_mean_of_running_statistics_ignores_steps():
    net = network("mlp", (6,), 3)
    chosen = find_method("fednova")
    state = chosen.start(initial(net, 0), [full(net)], configure(chosen, {"norm": "tracked"}))
    received, total, plan = (
        chosen.dispatch(state, chosen.place(state, full(net))),
        Total(),
        chosen.place(state, full(net)),
    )
    for index, (value, steps) in enumerate(((2.0, 1), (6.0, 9))):
        sent = {
            **received,
            "norm.running_mean": torch.full_like(received["norm.running_mean"], value),
        }
        fold(
            total,
            chosen.parts(
                state,
                plan,
                Update("r", 0, 0, str(index), "train", full(net), "0", 1, steps, sent, {}),
            ),
            (index,),
        )
    after = chosen.finish(state, total, np.random.default_rng(0)).tensors
    assert set(after["norm.running_mean"].tolist()) == {4.0}
    assert all(
        torch.equal(after[home], value)
        for home, value in state.tensors.items()
        if "running" not in home
    )


@pytest.mark.slow
def test_devices_with_unequal_data_learn_digits(tmp_path):
    fleet = [
        Member(f"a{i}", digits(i, 3, "dirichlet:0.5"), speed)
        for i, speed in enumerate((0.01, 0.018, 0.5))
    ]
    sizes = {"method.widths": [0.5, 1.0], "method.depths": [1, 2]}
    done = federate(
        tmp_path,
        fleet,
        {
            "method.name": "fednova",
            "model.name": "mlp",
            "rounds": 3,
            "train.epochs": 3,
            "evaluate.every": 3,
            **sizes,
        },
    )
    central = [s for s in done.result.scores if s.view == "central"]
    assert len({s.name for s in done.result.history.assigned.values()}) > 1
    assert all(np.isfinite(s.loss) for s in done.result.scores)
    assert max(s.accuracy for s in central) > 0.5
