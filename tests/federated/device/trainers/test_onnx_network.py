"""A network of graphs trains, calibrates and evaluates as PyTorch's does. Each pass is one batch,
since the two order the examples differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from export.trainstep.calibration_and_evaluation import make_calibration, make_evaluation
from export.trainstep.graph_export import export_graph
from export.trainstep.named_tensor_function import GraphFunction
from export.trainstep.training_step import make_step
from federated.device.trainers.graph_session import GraphSession
from federated.device.trainers.onnx_network import OnnxNetwork
from federated.device.trainers.pytorch_trainer import PyTorchTrainer
from federated.device.trainers.trainer import LoadedNetwork, Start
from federated.errors import DataError, Refused
from federated.task import Recipe
from federated.training.training_inputs import (
    UNWATCHED,
    Diverged,
    Execution,
    Stopped,
    TrainingSet,
)
from models.menu import menu
from models.submodel import Submodel
from models.submodel_building import build, statistics
from tests.support.smallest_networks import small

SLOTS = 9
OPEN: dict[str, GraphSession] = {}  # exports take seconds
PLAIN = Recipe(epochs=3, batch=8, lr=0.05, decay=0.01)
MLP = menu(small("mlp"), (0.5,), (1,))[0]


def open_graph(
    make: Callable[..., GraphFunction], submodel: Submodel, *recipe: Recipe
) -> GraphSession:
    key = f"{make.__name__} {submodel.network.title} {submodel.name} {recipe}"
    if key not in OPEN:
        OPEN[key] = GraphSession(export_graph(make(submodel, *recipe, SLOTS)))
    return OPEN[key]


def open_graphs(submodel: Submodel, recipe: Recipe) -> dict[str, GraphSession]:
    opened = {
        "step": open_graph(make_step, submodel, recipe),
        "evaluation": open_graph(make_evaluation, submodel),
    }
    if statistics(submodel):
        opened["calibration"] = open_graph(make_calibration, submodel)
    return opened


def draw_examples(submodel: Submodel, n: int) -> TrainingSet:
    random, network = np.random.default_rng(0), submodel.network
    if network.objective == "masked":
        x = random.integers(0, network.outputs, (n, *network.inputs))
        return TrainingSet(x, x)
    x = random.integers(0, 256, (n, *network.inputs)).astype(np.uint8)
    return TrainingSet(x, random.integers(0, 3, n), (0, 1, 2))


def make_start(submodel: Submodel, recipe: Recipe) -> Start:
    random, net = np.random.default_rng(1), build(submodel, seed=1)
    weights = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    weights = {name: value for name, value in weights.items() if "tracked" not in name}
    drawn = {
        name: random.normal(0, 0.1, value.shape).astype(np.float32)
        for name, value in net.named_parameters()
    }
    received = {f"c/{name}": value for name, value in drawn.items()}
    memory = {f"c/{name}": value[::-1].copy() / 2 for name, value in drawn.items()}
    return Start(submodel, recipe, weights, 7, 1, weights | received, memory)


def train(network: LoadedNetwork, data: TrainingSet):
    return network.train(data, UNWATCHED)


@pytest.mark.parametrize(
    "recipe",
    [
        replace(PLAIN, variate="scaffold", pull=0.2, clip=0.5, masked=True),
        pytest.param(replace(PLAIN, variate="feddyn", pull=0.2), marks=pytest.mark.slow),
        pytest.param(replace(PLAIN, optimiser="adamw", norm="tracked"), marks=pytest.mark.slow),
    ],
    ids=["scaffold", "feddyn", "adamw"],
)
def test_training_gives_the_update_of_pytorch(recipe) -> None:
    start, data = make_start(MLP, recipe), draw_examples(MLP, 7)
    with PyTorchTrainer("cpu").load(start) as network:
        wanted = train(network, data)
        statistics, batches = network.calibrate(data.x)
        scores = network.evaluate(data, recipe)
    ours = OnnxNetwork.load(start, open_graphs(MLP, recipe))
    found = train(ours, data)
    assert (found.steps, found.loss) == (3, pytest.approx(wanted.loss, rel=1e-4))
    for name in ("tensors", "sent", "memory"):
        mine, theirs = getattr(found, name), getattr(wanted, name)
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            np.testing.assert_allclose(mine[key], value, rtol=1e-3, atol=1e-4)
    measured, count = ours.calibrate(data.x)
    assert (measured.keys(), count) == (statistics.keys(), batches)
    for key, value in statistics.items():
        np.testing.assert_allclose(measured[key], value, rtol=1e-3, atol=1e-4)
    tallies = ours.evaluate(data, recipe)
    assert tallies.keys() == scores.keys() == {"all", "labels"}
    assert tallies["all"]["loss"] == pytest.approx(scores["all"]["loss"], rel=1e-3)


@pytest.mark.slow
def test_hidden_tokens() -> None:
    submodel = menu(small("transformer"), (0.5,), (1,))[0]
    recipe = replace(PLAIN, hide=1.0, lr=0.01)
    start, data = make_start(submodel, recipe), draw_examples(submodel, 7)
    ours = OnnxNetwork.load(start, open_graphs(submodel, recipe))
    with PyTorchTrainer("cpu").load(start) as network:
        wanted = network.evaluate(data, recipe)
    assert ours.evaluate(data, recipe)["all"]["loss"] == pytest.approx(
        wanted["all"]["loss"], rel=1e-4
    )
    assert train(ours, data).steps == 3


def test_a_pass_uses_each_example_once_in_the_order_of_the_seed() -> None:
    """4 steps per pass; a limit of steps ends within the second pass."""
    recipe = replace(PLAIN, variate="scaffold", pull=0.2, clip=0.5, masked=True)
    start = make_start(MLP, replace(recipe, batch=2, epochs=3, steps=5))
    seen = []
    execution = Execution(on_step=lambda done, steps, loss: seen.append((done, steps)))
    found = [
        OnnxNetwork.load(start, open_graphs(MLP, recipe)).train(draw_examples(MLP, 8), execution)
        for _ in range(2)
    ]
    assert seen[:5] == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    for name, value in found[0].tensors.items():
        assert np.array_equal(value, found[1].tensors[name])


def test_refusals() -> None:
    recipe = replace(PLAIN, variate="scaffold", pull=0.2, clip=0.5, masked=True)
    graphs, data = open_graphs(MLP, recipe), draw_examples(MLP, 20)
    network = OnnxNetwork.load(make_start(MLP, replace(recipe, batch=16)), graphs)
    with pytest.raises(Refused, match="expected a graph for 16 examples per step, found one for 9"):
        train(network, data)
    network = OnnxNetwork.load(make_start(MLP, recipe), graphs)
    with pytest.raises(DataError, match="at least 1 example"):
        train(network, draw_examples(MLP, 0))
    with pytest.raises(Stopped):
        network.train(data, Execution(stop=lambda: True))
    network = OnnxNetwork.load(make_start(MLP, replace(recipe, lr=1e30)), graphs)
    with pytest.raises(Diverged, match="try a learning rate below 1e"):
        train(network, data)
