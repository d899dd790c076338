"""Tasks and data that are small enough for numbers derived by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from federated.device import task_execution
from federated.device.trainers.catalogue import open_trainer
from federated.task import Recipe, Task
from federated.training.training_inputs import TrainingSet
from models.menu import menu
from models.named_network import network
from models.submodel import Moments, Network, Submodel
from models.submodel_building import build, shapes, statistics

__all__ = [
    "BARE",
    "NET",
    "ONE",
    "PLAIN",
    "PYTORCH",
    "SMALL",
    "examples",
    "linear",
    "parameters",
    "perform",
    "perform_task",
    "task",
    "weights",
]

PYTORCH = open_trainer("pytorch")
NET = network("preresnet", (1, 4, 4), 3, Moments((8.0,), (5.0,)))
(SMALL,) = menu(NET, (0.5,), (1,))
# of networks made here by hand: classes to learn, and no exits
BARE = Submodel(Network("none", "", (1,), 2), 1.0, ())
PLAIN = Recipe(epochs=1, batch=4, lr=0.1, momentum=0.0)
ONE = TrainingSet(np.array([[2.0]], dtype=np.float32), np.array([0]), (0, 1))


def examples(n=24, seed=0, classes=3):
    """Return images whose brightness is their class."""
    rng = np.random.default_rng(seed)
    y = np.arange(n, dtype=np.int64) % classes
    x = (rng.integers(0, 4, (n, 1, 4, 4)) + 6 * y[:, None, None, None]).astype(np.uint8)
    held = slice(0, n, 4)
    return SimpleNamespace(x=x, y=y, x_held=x[held], y_held=y[held], labels=tuple(range(classes)))


def weights(submodel, seed=0):
    torch.manual_seed(seed)
    state = build(submodel).state_dict()
    return {name: state[name].numpy() for name in shapes(submodel) | statistics(submodel)}


def parameters(submodel, seed=0):
    return {
        name: value for name, value in weights(submodel, seed).items() if name in shapes(submodel)
    }


def task(work="train", submodel=SMALL, **recipe):
    given = {"epochs": 2, "batch": 8, "lr": 0.1, **recipe}
    return Task("run", 3, 7, "agent", work, submodel, "v", "", 0, Recipe(**given), 60.0)


def perform(task, tensors, data, kept=None, trainer=PYTORCH, **named):
    """Perform a task. Return its update, and the memory that the device must keep."""
    return task_execution.perform(trainer, task, tensors, data, kept, **named)


def perform_task(*given, **named):
    """Perform a task. Return its update."""
    return perform(*given, **named)[0]


def linear(value=0.0):
    net = nn.Linear(1, 2, bias=False)
    nn.init.constant_(net.weight, value)
    return net
