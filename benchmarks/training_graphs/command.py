"""`python -m benchmarks trainstep`: export a training step of a network of each family, and compare
it with PyTorch: the error of one step, the losses of 50, time, memory, and what the export takes.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
import torch

from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import AT_MOST, Baseline, Row, compare
from benchmarks.training_graphs import step_process
from benchmarks.training_graphs.step_and_pytorch_training import (
    Take,
    Trial,
    open_graph,
    train_with_pytorch,
    train_with_step,
)
from edge_agent.join.speed_calibration import build_network, draw_examples
from export.trainstep.graph_export import export_graph
from export.trainstep.named_tensor_function import GraphFunction
from federated.errors import ExportError
from federated.runtime.console import Say
from federated.task import Recipe
from models.submodel import Submodel
from models.submodel_building import full

__all__ = ["Deviation", "command", "compare_steps", "measure"]

MODELS = (
    *("densenet-small", "efficientnet-tiny", "lenet-5", "mlp-small", "mobilenet-tiny"),
    *("preresnet-small", "resnet-small", "resnet1d-small", "transformer-small"),
    *("transformer-small-causal", "vgg-9-small", "vit-micro"),
)
ERROR = 1e-5  # most error of one step, unless PyTorch's own is larger
TURNS = 5
PYTORCH = "PyTorch"


@dataclass(frozen=True)
class Deviation:
    """Deviation from PyTorch's training in float64. distance: of the parameters. losses: the
    largest of a loss.
    """

    distance: float
    losses: float


def find_deviations(trial: Trial, function: GraphFunction, take: Take) -> list[Deviation]:
    """Return the deviations of the graph and of PyTorch in float32."""
    single, exact = replace(trial, dtype=torch.float32), train_with_pytorch(trial, function)
    return [
        Deviation(
            found.distance(exact), float(np.abs(np.subtract(found.losses, exact.losses)).max())
        )
        for found in (
            train_with_step(single, function, take),
            train_with_pytorch(single, function),
        )
    ]


def measure(model: str, batch: int, steps: int, folder: Path, say: Say) -> list[Row]:
    """Measure one network. ExportError: its step cannot be exported, or trains less exactly than
    PyTorch does.
    """
    submodel = full(build_network(model, draw_examples(model, 2)))
    recipe = choose_recipe(submodel, batch)
    one, path = Trial(submodel, replace(recipe, steps=1)), folder / f"{model}.onnx"
    start = time.perf_counter()
    function = one.make_function()
    graph = export_graph(function)
    say(f"{model}: exported in {time.perf_counter() - start:.1f} s, {len(graph) / 1e6:.1f} MB")
    path.write_bytes(graph)
    take, curves = open_graph(graph), replace(one, recipe=replace(recipe, epochs=-(-steps // 2)))
    exact, training = (find_deviations(trial, function, take) for trial in (one, curves))
    parameters = compare_steps(model, *exact)
    ours, theirs = time_processes(submodel, model, batch, str(path))
    return [
        parameters,
        *(
            compare(f"{model}, {name}", mine, peer=Baseline(PYTORCH, other))
            for name, mine, other in (
                ("largest error of a loss", training[0].losses, training[1].losses),
                ("step (ms)", 1000 * ours.seconds, 1000 * theirs.seconds),
                ("memory (MB)", ours.peak / 1e6, theirs.peak / 1e6),
                ("until the first step (s)", ours.ready, theirs.ready),
            )
        ),
    ]


def compare_steps(model: str, graph: Deviation, pytorch: Deviation) -> Row:
    """Return the row of the parameters after one step. ExportError: the graph's are less exact than
    PyTorch's.
    """
    most = Baseline(AT_MOST, max(ERROR, 2 * pytorch.distance))
    row = compare(f"{model}, largest error of a parameter", graph.distance, 1.0, limit=most)
    if not row.met:
        raise ExportError(
            f"a step differs by {graph.distance:.1e} from PyTorch's in float64, and may by "
            f"{most.value:.1e}"
        )
    return row


def time_processes(
    submodel: Submodel, model: str, batch: int, graph: str
) -> tuple[step_process.Taken, step_process.Taken]:
    """Return the medians of steps with the graph and with PyTorch, in processes that take turns."""
    ours, theirs = list[step_process.Taken](), list[step_process.Taken]()
    for _ in range(TURNS):
        ours.append(step_process.ask(submodel, model, batch, graph))
        theirs.append(step_process.ask(submodel, model, batch + 1))  # as many as the graph takes
    return step_process.find_median(ours), step_process.find_median(theirs)


def choose_recipe(submodel: Submodel, batch: int) -> Recipe:
    """Return AdamW for transformers of text, and SGD with momentum for all others."""
    if submodel.network.objective in ("next", "masked"):
        return Recipe(batch=batch, optimiser="adamw", lr=0.001, decay=0.01)
    return Recipe(batch=batch, lr=0.01, decay=5e-4)


@benchmark("trainstep", "export")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    help="measure only this network, or module:function; may be repeated",
)
@click.option(
    "--batch",
    type=click.IntRange(min=2),
    default=32,
    show_default=True,
    metavar="N",
    help="examples per training step",
)
@click.option(
    "--steps",
    type=click.IntRange(min=2),
    default=50,
    show_default=True,
    metavar="N",
    help="length of the training whose losses are compared",
)
def command(models: tuple[str, ...], batch: int, steps: int, say: Say) -> list[Row]:
    """Compare training steps as ONNX graphs with PyTorch.

    Export a step of one network of each family, and compare its results, time and memory.
    """
    rows, failed = list[Row](), list[str]()
    with (
        tempfile.TemporaryDirectory(prefix="espalier-") as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # the exporter's own
        for model in models or MODELS:
            try:
                rows += measure(model, batch, steps, Path(folder), say)
            except ExportError as error:
                say(f"{model}: {error}")
                failed.append(model)
    if failed:
        raise ExportError(f"not exported, or inexact: {', '.join(failed)} (see above)")
    return rows
