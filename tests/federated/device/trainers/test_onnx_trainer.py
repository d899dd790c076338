"""A trainer without the network's code performs tasks with the graphs that they name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from federated.device.task_execution import carry_out
from federated.device.trainers.onnx_trainer import OnnxTrainer
from federated.device.trainers.trainer import Shapes, uses_graphs
from federated.errors import ConfigError, Refused
from federated.task import Graph, Recipe, Task
from federated.training.training_inputs import TrainingSet
from federated.wire import tensors
from federated.wire.codecs.catalogue import find_loaded_codec
from federated.wire.codecs.codec import decode_update
from federated.wire.messages import Run
from tests.support.handmade_graphs import INPUTS, make_model, make_node, write_graph, write_graphs
from tests.support.small_tasks import BARE, PYTORCH

START = np.array([[1.0, 2.0]], np.float32)


class Data(TrainingSet):
    """Five examples to train on, and two to score."""

    def __init__(self) -> None:
        super().__init__(np.ones((5, 1), np.float32), np.zeros(5, np.int64), (0, 1))
        object.__setattr__(self, "x_held", np.ones((2, 1), np.float32))
        object.__setattr__(self, "y_held", np.ones(2, np.int64))


def perform(folder: Path, graphs: tuple[Graph, ...], **changes: object):
    recipe = Recipe(epochs=2, batch=4, lr=0.25)
    task = Task("r", 1, 1, "a", "train", BARE, "v", "0" * 64, 0, recipe, 60.0, graphs=graphs)
    weights, result = folder / "w.weights", folder / "u.update"
    weights.write_bytes(tensors.encode({}, {"w": START}))
    carry_out(OnnxTrainer("cpu"), replace(task, **changes), weights, result, Data())
    return decode_update(result.read_bytes(), find_loaded_codec("raw"), 1 << 20, {})


def test_a_task_is_trained_with_its_graphs(tmp_path: Path) -> None:
    """Batches of 4 of 5 examples: the last one joins, so a pass has one step."""
    update = perform(tmp_path, write_graphs(tmp_path))
    assert update.tensors["w"].tolist() == [[0.5, 1.5]], "two steps of 0.25"
    assert (update.steps, update.samples, update.notes["loss"]) == (2, 5, 1.0)


def test_scores_come_from_the_evaluation_graph(tmp_path: Path) -> None:
    scored = Recipe(epochs=1, batch=4, lr=0.25, scores=True)
    update = perform(tmp_path, write_graphs(tmp_path), recipe=scored)
    tallies = update.notes["tallies"]
    assert {when: tallies[when]["right"] for when in tallies} == {"before": [2.0], "after": [2.0]}
    only = perform(tmp_path, write_graphs(tmp_path), work="evaluate")
    assert only.notes["tallies"]["all"]["count"] == [2.0]


def test_a_task_without_the_graphs_that_it_needs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="names no training graphs"):
        perform(tmp_path, ())
    step, evaluation = write_graphs(tmp_path)
    with pytest.raises(Refused, match="names no graph of the step"):
        perform(tmp_path, (evaluation,))
    with pytest.raises(Refused, match="names no graph of the evaluation"):
        perform(tmp_path, (step,), work="evaluate")


def test_weights_and_graphs_of_other_shapes_are_refused(tmp_path: Path) -> None:
    wide = {**INPUTS, "p.w": (INPUTS["p.w"][0], (1, 3))}
    other = write_graph(tmp_path, make_model("evaluation", inputs=wide), "evaluation")
    with pytest.raises(Refused, match=r"expected shape \(1, 3\), found \(1, 2\)"):
        perform(tmp_path, (other,), work="evaluate")
    with pytest.raises(Refused, match=r"one shape of p\.w, found \(1, 2\) and \(1, 3\)"):
        perform(tmp_path, (write_graphs(tmp_path)[0], other))


def test_a_recipe_with_larger_batches_than_the_graph_is_refused(tmp_path: Path) -> None:
    small = {name: (INPUTS[name][0], (3, *INPUTS[name][1][1:])) for name in ("x", "y", "weights")}
    step = write_graph(tmp_path, make_model(inputs={**INPUTS, **small}))
    with pytest.raises(Refused, match="for 5 examples per step, found one for 3"):
        perform(tmp_path, (step,))


def test_a_graph_with_a_methods_loss_reads_the_recipes_options(tmp_path: Path) -> None:
    """Its step subtracts the option from every weight, too."""
    inputs = {**INPUTS, "option.rate": (TensorProto.FLOAT, ())}
    model = make_model(inputs=inputs)
    move = model.graph.node[0]
    move.input[1] = "both"
    model.graph.node.insert(0, make_node("Add", ["lr", "option.rate"], ["both"]))
    graphs = (write_graph(tmp_path, model),)
    recipe = Recipe(epochs=1, batch=4, lr=0.25, hook="far", options={"rate": 0.5, "kind": "any"})
    assert perform(tmp_path, graphs, recipe=recipe).tensors["w"].tolist() == [[0.25, 1.25]]
    for wrong in ({}, {"rate": "fast"}):
        with pytest.raises(Refused, match="reads the option 'rate', found"):
            perform(tmp_path, graphs, recipe=replace(recipe, options=wrong))


def test_the_graphs_of_the_last_task_are_not_used_for_the_next(tmp_path: Path) -> None:
    trainer = OnnxTrainer("cpu")
    graphs = {one.kind: tmp_path / f"{one.digest}.graph" for one in write_graphs(tmp_path)}
    trainer.use_graphs(graphs)
    assert trainer.shapes(BARE) == Shapes({"w": (1, 2)}, {})
    trainer.use_graphs({})
    with pytest.raises(Refused, match="names no training graphs"):
        trainer.shapes(BARE)


def test_it_cannot_compute_on_a_gpu() -> None:
    with pytest.raises(ConfigError, match="computes on the CPU alone"):
        OnnxTrainer("cuda")


def test_it_joins_a_run_whose_method_surveys_devices_without_a_survey() -> None:
    """The default method, FedFA, then chooses as for a device that scored nothing."""
    card = Run("r", "fedfa", "mlp", None, (), 32, "s", menu=(BARE,))
    assert OnnxTrainer("cpu").survey(card, Data(), 1) == {}


def test_only_a_trainer_of_graphs_is_given_graphs() -> None:
    assert uses_graphs(OnnxTrainer("cpu"))
    assert not uses_graphs(PYTORCH)
