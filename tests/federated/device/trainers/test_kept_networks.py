"""A network that trained before trains again as a new one would."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from federated.device.trainers import kept_networks
from federated.device.trainers.pytorch_trainer import PyTorchTrainer
from federated.device.trainers.trainer import Start
from federated.task import Recipe
from federated.training.training_inputs import UNWATCHED, TrainingSet
from models.named_network import network
from models.submodel import Submodel
from models.submodel_building import full, initial


class Counting(nn.Module):
    """A layer that remembers how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        found: Tensor = self.linear(x.flatten(1)) * self.calls
        return found


def make_normed() -> nn.Module:
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(144, 4))


def make_counting() -> nn.Module:
    return Counting()


NORMED, COUNTED = (
    full(network(f"{__name__}:{name}", (1, 8, 8), 4)) for name in ("make_normed", "make_counting")
)


def start(submodel: Submodel, recipe: Recipe, *, drop: str = "", seed: int = 1) -> Start:
    weights = initial(submodel.network, seed)
    # running statistics are sent only under norm = "tracked"
    absent = (
        (drop,) if recipe.norm == "tracked" else (drop, "net.1.running_mean", "net.1.running_var")
    )
    own = {name: value.numpy() for name, value in weights.items() if name not in absent}
    return Start(submodel, recipe, own, seed)


def examples() -> TrainingSet:
    draw = np.random.default_rng(0)
    return TrainingSet(
        draw.normal(size=(12, 1, 8, 8)).astype(np.float32), draw.integers(0, 4, 12), (0, 1, 2, 3)
    )


def train(trainer: PyTorchTrainer, one: Start) -> dict[str, Any]:
    """Return the results of a training and an evaluation, as plain values."""
    with trainer.load(one) as net:
        trained = net.train(examples(), UNWATCHED).tensors
        tallies = net.evaluate(examples(), one.recipe)
    return {name: value.tolist() for name, value in trained.items()} | {"tallies": tallies}


TRACKED = Recipe(norm="tracked", epochs=2, batch=4, lr=0.1)


@pytest.mark.parametrize("submodel", [NORMED, COUNTED], ids=["stateless", "stateful"])
@pytest.mark.parametrize("drop", ["", "net.linear.weight", "net.5.weight"])
def test_a_task_does_not_depend_on_earlier_tasks(submodel: Submodel, drop: str) -> None:
    """Neither on their weights, statistics and gradients, nor on tensors that a start lacks."""
    used = PyTorchTrainer("cpu")
    train(used, start(submodel, TRACKED, seed=2))
    train(used, start(submodel, replace(TRACKED, norm="static", frozen=("net.5.bias",)), seed=3))
    with used.load(start(submodel, TRACKED)) as net:
        net.calibrate(examples().x)
        net.evaluate(examples(), TRACKED)
    for recipe in (TRACKED, replace(TRACKED, norm="static")):
        begun = start(submodel, recipe, drop=drop)
        assert train(used, begun) == train(PyTorchTrainer("cpu"), begun)


def test_an_interrupted_task_leaves_no_network() -> None:
    trainer, begun = PyTorchTrainer("cpu"), start(NORMED, TRACKED)
    with pytest.raises(KeyboardInterrupt), trainer.load(begun) as first:
        raise KeyboardInterrupt
    with trainer.load(begun) as second:
        assert second.net is not first.net


def test_networks_without_own_layers_are_kept_up_to_a_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, kept = PyTorchTrainer("cpu"), dict[str, list[nn.Module]]()

    def use(name: str, submodel: Submodel) -> None:
        with trainer.load(start(submodel, TRACKED)) as net:
            kept.setdefault(name, []).append(net.net)

    for _ in range(2):
        use("normed", NORMED)
        use("counted", COUNTED)
    assert kept["normed"][0] is kept["normed"][1]
    assert kept["counted"][0] is not kept["counted"][1]
    monkeypatch.setattr(kept_networks, "MOST", 1000)
    use("normed", NORMED)
    use("normed", NORMED)
    assert kept["normed"][2] is kept["normed"][1] is not kept["normed"][3]
