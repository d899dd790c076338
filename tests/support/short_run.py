"""A run of a few steps on two agents, and the difference between the results of two such runs."""

from __future__ import annotations

from federated.method import configure
from federated.methods.catalogue import find_method
from models.named_network import network
from tests.support.memory_federation import Member, digits, federate

__all__ = ["apart", "train_briefly"]

NET = network("resnet-small", (1, 8, 8), 10)


def train_briefly(folder, name, rounds, **given):
    """Return the network after two agents with the largest submodels trained it."""
    chosen = find_method(name)
    largest = chosen.menu(NET, configure(chosen, given))[-1].name
    settings = {
        "method.name": name,
        "model.name": "resnet-small",
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
