"""Exported graphs train as PyTorch does, and unsupported networks are named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import onnx
import pytest
import torch
from torch import Tensor, nn

from benchmarks.training_graphs.step_and_pytorch_training import (
    Trial,
    open_graph,
    train_with_pytorch,
    train_with_step,
)
from export.trainstep.calibration_and_evaluation import make_calibration, make_evaluation
from export.trainstep.graph_export import export_graph
from export.trainstep.named_tensor_function import GraphFunction
from export.trainstep.training_step import make_step
from federated.errors import ExportError
from federated.onnx_graph_contents import list_foreign_operators
from federated.task import Recipe
from models.layers.batch_norm import calibrate
from models.menu import menu
from models.named_network import network
from models.submodel import Submodel
from models.submodel_building import build, full, statistics
from tests.models.test_every_family import batch
from tests.support.smallest_networks import small

RECIPE = Recipe(batch=4, lr=0.02, decay=0.01)
CASES = {name: menu(small(name), (0.5,), (1,))[0] for name in ("mlp", "mobilenet")}


def test_a_graph_trains_as_pytorch_does() -> None:
    """One step is as close to PyTorch's in float64 as PyTorch's own in float32 is, and each of 50
    steps gives what the function gives that was exported. Whole curves differ once an activation
    lies on either side of a kink, PyTorch's own in two precisions, too.
    """
    one = Trial(CASES["mlp"], replace(RECIPE, steps=1))
    function = one.make_function()
    graph = export_graph(function)
    assert not list_foreign_operators(graph)
    take, single = open_graph(graph), replace(one, dtype=torch.float32)
    exact, theirs = (train_with_pytorch(trial, function) for trial in (one, single))
    found = train_with_step(single, function, take)
    assert found.distance(exact) < max(1e-5, 2 * theirs.distance(exact))

    many = replace(single, recipe=replace(RECIPE, epochs=25))
    losses = train_with_step(many, function, compare_steps(take, function)).losses
    assert len(losses) == 50
    assert losses[-1] < losses[0]


def compare_steps(
    take: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]], function: GraphFunction
) -> Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]:
    """Return a step of a graph that must give what the function gives that was exported."""

    def compare(given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        found, wanted = take(given), function.compute(given)
        for key, value in wanted.items():
            torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-4)
        return found

    return compare


# `python -m benchmarks trainstep` exports the other families, which take minutes each
@pytest.mark.slow
def test_every_input_of_a_recipe_reaches_the_graph() -> None:
    recipe = replace(
        RECIPE, epochs=2, masked=True, pull=0.3, variate="scaffold", clip=0.5, norm="tracked"
    )
    trial = Trial(CASES["mobilenet"], recipe, torch.float32)  # with dropout
    function = trial.make_function()
    graph = export_graph(function)
    wanted = train_with_pytorch(trial, function)
    assert not list_foreign_operators(graph)
    found = train_with_step(trial, function, compare_steps(open_graph(graph), function))
    assert found.distance(wanted) < 1e-4
    model = onnx.load_from_string(graph)
    names = {one.name for one in model.graph.input}
    assert {"weights", "classes", "pull", "clip", "draw.0", "b.stem.norm.running_mean"} <= names
    assert {one.domain for one in model.opset_import} == {""}


def test_inputs_with_the_same_example_stay_apart() -> None:
    same = torch.zeros(3)
    function = GraphFunction(
        "toy", CASES["mlp"], lambda given: {"d": given["x"] - given["z"]}, {"x": same, "z": same}
    )
    found = open_graph(export_graph(function))({"x": torch.ones(3), "z": torch.full((3,), 3.0)})
    assert found["d"].tolist() == [-2.0] * 3


def test_properties_tell_what_a_graph_is() -> None:
    graph = export_graph(make_evaluation(CASES["mlp"], 3))
    found = {one.key: one.value for one in onnx.load_from_string(graph).metadata_props}
    assert found == {
        "kind": "evaluation",
        "submodel": CASES["mlp"].name,
        "batch": "3",
        "draws": json.dumps([]),
    }
    assert export_graph(make_evaluation(CASES["mlp"], 3)) == graph, "its digest names it"


def fill_with(submodel: Submodel, x: Tensor, slots: int) -> dict[str, Tensor]:
    """Return the inputs of a forward pass over x, filled up with other examples of weight 0."""
    net, missing = build(submodel, seed=1), slots - len(x)
    junk = x[:1].repeat_interleave(missing, 0) + 1
    return {
        "x": torch.cat([x, junk]),
        "weights": torch.tensor([1.0] * len(x) + [0.0] * missing),
        **{f"p.{name}": value.detach() for name, value in net.named_parameters()},
    }


def test_calibration_of_a_partial_batch() -> None:
    submodel = CASES["mlp"]
    x = batch(submodel.network, 3)
    wanted, _ = calibrate(build(submodel, seed=1), [x])
    found = open_graph(export_graph(make_calibration(submodel, 5)))(fill_with(submodel, x, 5))
    assert found.keys() == {f"b.{name}" for name in wanted}
    for name, value in wanted.items():
        torch.testing.assert_close(found[f"b.{name}"], value, rtol=1e-5, atol=1e-6)


def test_evaluation_uses_the_statistics() -> None:
    submodel = CASES["mlp"]
    x, net = batch(submodel.network, 3), build(submodel, seed=1).eval()
    given, state = fill_with(submodel, x, 3), net.state_dict()
    for number, name in enumerate(statistics(submodel), 1):
        given[f"b.{name}"] = state[name].fill_(number / 10)
    del given["weights"]
    found = open_graph(export_graph(make_evaluation(submodel, 3)))(given)
    with torch.no_grad():
        torch.testing.assert_close(found["out.0"], net(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_evaluation_of_exits() -> None:
    submodel = full(small("resnet"), ("exits",))
    x, net = batch(submodel.network, 2), build(submodel, seed=1).eval()
    given, state = fill_with(submodel, x, 2), net.state_dict()
    given |= {f"b.{name}": state[name] for name in statistics(submodel)}
    del given["weights"]
    found = open_graph(export_graph(make_evaluation(submodel, 2)))(given)
    with torch.no_grad():
        wanted = net.exits(x)
    assert found.keys() == {f"out.{i}" for i in range(len(wanted))}
    for i, out in enumerate(wanted):
        torch.testing.assert_close(found[f"out.{i}"], out, rtol=1e-5, atol=1e-5)


class Noisy(nn.Module):
    """Adds noise, which no input of a graph can give."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1) + torch.randn_like(x.flatten(1)))  # type: ignore[no-any-return]


def test_the_operator_that_cannot_be_exported_is_named() -> None:
    submodel = full(network("tests.support.user_networks:Growing", (1, 8, 8), 10))
    with pytest.raises(ExportError, match=r"aten\.convolution_backward has no translation to ONNX"):
        export_graph(make_step(submodel, RECIPE, 4))


def test_other_random_layers_than_dropout_are_named() -> None:
    submodel = full(network(f"{__name__}:Noisy", (1, 8, 8), 10))
    with pytest.raises(ExportError, match=r"the only random layer, found aten\.randn"):
        export_graph(make_step(submodel, RECIPE, 4))


@pytest.mark.parametrize(
    ("module", "part"),
    [
        ("_registration", "ONNXRegistry"),
        ("_decomp", "create_onnx_friendly_decomposition_table"),
        ("_fx_passes", "decompose_with_registry"),
    ],
)
def test_a_version_of_pytorch_without_a_private_part_is_named(
    module: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(f"torch.onnx._internal.exporter.{module}.{part}")
    wanted = f"PyTorch {re.escape(torch.__version__)} differs .*{part}.*: install PyTorch 2"
    with pytest.raises(ExportError, match=wanted):
        export_graph(make_evaluation(CASES["mlp"], 2))
