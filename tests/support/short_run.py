"""A run of a few steps on two agents, and the difference between the results of two such runs."""

from __future__ import annotations

from federated.errors import ConfigError
from federated.method import configure
from federated.methods.catalogue import find_method
from models.named_network import network
from tests.support.memory_federation import Member, digits, federate

__all__ = ["apart", "train_briefly"]

MODELS = ("mlp-small", "resnet-small")  # the first that can do what a method asks of a network


def find_largest(name, given):
    """Return a model, and the name of the largest submodel that a method proposes for it."""
    chosen = find_method(name)
    for model in MODELS:
        try:
            sizes = chosen.menu(network(model, (1, 8, 8), 10), configure(chosen, given))
            return model, sizes[-1].name
        except ConfigError:
            continue
    raise AssertionError(f"{name} serves no network of these runs")


def train_briefly(folder, name, rounds, **given):
    """Return the network after two agents with the largest submodels trained it."""
    model, largest = find_largest(name, given)
    settings = {
        "method.name": name,
        "model.name": model,
        "rounds": rounds,
        "train.epochs": 1,
        "train.steps": 1,
        "evaluate.every": rounds,
        "evaluate.between": False,
        "evaluate.devices": False,
        "evaluate.examples": 20,
    }
    more = {f"method.{key}": value for key, value in given.items()}
    folder.mkdir()
    done = federate(
        folder,
        [Member(f"a{i}", digits(i, 30)) for i in range(2)],
        {**settings, "assign.submodels": {"a*": largest}, **more},
    )
    return done.result.state.tensors


def apart(one, other):
    return max(float((one[home] - other[home]).abs().max()) for home in one)
