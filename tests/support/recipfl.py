"""RecipFL on a small network, and a device that trains what RecipFL sends."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from federated.method import configure
from federated.methods.catalogue import find_method
from federated.task import Task
from models.named_network import network
from tests.support.small_tasks import perform

__all__ = ["METHOD", "NET", "begin_method", "examples", "sent", "train_round"]

METHOD = find_method("recipfl")
NET = network("mlp", (6,), 3)


def begin_method(net=NET, **given):
    """Return the menu, and the state before the first round."""
    settings = configure(METHOD, {"hidden": 8, "batch": 8, **given})
    menu = METHOD.menu(net, settings)
    return menu, METHOD.start({}, menu, settings)


def sent(state, submodel):
    return METHOD.dispatch(state, METHOD.place(state, submodel))


def examples(n=24):
    rng = np.random.default_rng(0)
    y = np.arange(n, dtype=np.int64) % 3
    x = (rng.standard_normal((n, 6)) + 3 * np.eye(3, 6)[y]).astype(np.float32)
    return SimpleNamespace(x=x, y=y, x_held=x[:6], y_held=y[:6], labels=(0, 1, 2))


def train_round(state, submodel, data=None):
    """Return a device's update after a round."""
    received = {name: value.numpy() for name, value in sent(state, submodel).items()}
    task = Task(
        "r", 1, 0, "a0", "train", submodel, "v", "", 0, METHOD.recipe(state, submodel), 60.0
    )
    return perform(task, received, data or examples())[0].tensors
