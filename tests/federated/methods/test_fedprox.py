"""FedProx."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from federated.errors import ConfigError
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.training.training_inputs import TrainingSet
from federated.training.training_loop import train
from models.named_network import network
from models.submodel_building import build, full, initial
from tests.support.memory_federation import Member, digits, federate

NET = network("mlp", (6,), 3)


def train_steps(mu, epochs=20):
    """Train on ten random examples. Return the distance that the weights moved, and the running
    mean.
    """
    chosen = find_method("fedprox")
    given = configure(chosen, {"mu": mu, "lr": 0.1, "momentum": 0.0, "epochs": epochs, "batch": 10})
    submodel = full(NET)
    state = chosen.start(initial(NET, 0), [submodel], given)
    net, rng = build(submodel), np.random.default_rng(0)
    net.load_state_dict(chosen.dispatch(state, chosen.place(state, submodel)), strict=False)
    x, y = rng.normal(size=(10, 6)).astype(np.float32), rng.integers(0, 3, 10)
    train(net, submodel, chosen.recipe(state, submodel), TrainingSet(x, y, (0, 1, 2)), seed=0)
    moved = [(p.detach() - state.tensors[name]).norm() for name, p in net.named_parameters()]
    return float(torch.stack(moved).norm()), net.norm.running_mean.clone()


def test_a_stronger_pull_keeps_a_device_nearer_to_what_it_received():
    far, near, nearest = (train_steps(mu)[0] for mu in (0.0, 1.0, 5.0))
    assert far > 1.5 * near > 2 * nearest > 0


def test_running_statistics_are_not_pulled():
    """After one step from the same weights they depend on the batch only, not on mu."""
    assert torch.equal(train_steps(0.0, epochs=1)[1], train_steps(5.0, epochs=1)[1])
    assert float(train_steps(5.0, epochs=1)[1].abs().sum()) > 0


def test_mu_is_the_recipes_pull():
    chosen = find_method("fedprox")
    state = chosen.start(initial(NET, 0), [full(NET)], configure(chosen, {}))
    assert (chosen.recipe(state, full(NET)).pull, chosen.recipe(state, full(NET)).hook) == (
        0.01,
        "",
    )
    assert chosen.hooks is None


def test_unequal_devices_learn_digits(tmp_path):
    fleet = [Member(f"a{i}", digits(i, 3), speed) for i, speed in enumerate((0.01, 0.018, 0.5))]
    sizes = {"method.widths": [0.5, 1.0], "method.depths": [1, 2]}
    done = federate(
        tmp_path,
        fleet,
        {
            "method.name": "fedprox",
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


@pytest.mark.parametrize("mu", ["strong", True])
def test_a_mu_that_is_no_number_is_refused(mu):
    with pytest.raises(ConfigError, match="method fedprox: mu: expected a number"):
        configure(find_method("fedprox"), {"mu": mu})
