"""`python -m benchmarks trainstep`: export a training step of a network of each family, and compare
it with PyTorch: the error of one step, the losses of 50, time, memory, and what the export takes.

PyTorch's own results depend on the layout of its tensors in memory and on its threads, because it
adds in another order. The largest deviation of these variants from float64 is the measure of what a
graph may deviate.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import click
import numpy as np
import torch

from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import AT_MOST, Baseline, Failure, Row, compare
from benchmarks.training_graphs import step_process
from benchmarks.training_graphs.step_and_pytorch_training import (
    Outcome,
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
LAYOUTS, THREADS = (torch.contiguous_format, torch.channels_last), (1, 2)  # of PyTorch's variants
TURNS = 5
PYTORCH = "PyTorch"
# most time and memory of a step, as multiples of PyTorch's
TIMES: Mapping[str, float] = {
    **dict.fromkeys(("preresnet", "resnet", "vgg"), 1.3),
    **dict.fromkeys(("efficientnet", "mobilenet"), 1.1),
    **dict.fromkeys(("transformer", "vit"), 0.8),
}
MEMORY = 0.4


@dataclass(frozen=True)
class Deviation:
    """Deviation from PyTorch's training in float64. distance: of the parameters. losses: the
    largest of a loss.
    """

    distance: float
    losses: float


def find_deviation(found: Outcome, exact: Outcome) -> Deviation:
    losses = np.abs(np.subtract(found.losses, exact.losses))
    return Deviation(found.distance(exact), float(losses.max()))


def find_spread(trial: Trial, function: GraphFunction, exact: Outcome) -> Deviation:
    """Return the largest deviations of PyTorch's variants in float32."""
    found = [
        find_deviation(
            train_with_pytorch(
                replace(trial, dtype=torch.float32, layout=layout, threads=threads), function
            ),
            exact,
        )
        for layout, threads in product(LAYOUTS, THREADS)
    ]
    return Deviation(max(one.distance for one in found), max(one.losses for one in found))


def measure(model: str, batch: int, steps: int, folder: Path, say: Say) -> Iterator[Row]:
    """Measure one network. ExportError: its step cannot be exported, or, after all rows, trains
    less exactly than PyTorch does.
    """
    submodel = full(build_network(model, draw_examples(model, 2)))
    recipe = choose_recipe(submodel, batch)
    one, path = Trial(submodel, replace(recipe, steps=1)), folder / f"{model}.onnx"
    start = time.perf_counter()
    function = one.make_function()
    graph = export_graph(function)
    seconds = time.perf_counter() - start
    say(f"{model}: exported in {seconds:.1f} s, {len(graph) / 1e6:.1f} MB")
    yield compare(f"{model}, export (s)", seconds)
    path.write_bytes(graph)
    take, curves = open_graph(graph), replace(one, recipe=replace(recipe, epochs=-(-steps // 2)))
    for trial, name in ((one, "parameter"), (curves, "loss")):
        exact = train_with_pytorch(trial, function)
        ours = train_with_step(replace(trial, dtype=torch.float32), function, take)
        found, spread = find_deviation(ours, exact), find_spread(trial, function, exact)
        if name == "parameter":
            exactness = compare_steps(model, found, spread)
            yield exactness
        else:
            peer = Baseline(PYTORCH, spread.losses)
            yield compare(f"{model}, largest error of a loss", found.losses, peer=peer)
    yield from compare_costs(submodel, model, batch, str(path))
    if not exactness.met and exactness.limit:
        raise ExportError(
            f"a step differs by {exactness.ours:.1e} from PyTorch's in float64, and may by "
            f"{exactness.limit.value:.1e}"
        )


def compare_steps(model: str, graph: Deviation, pytorch: Deviation) -> Row:
    """Return the row of the parameters after one step. pytorch: the spread of its variants."""
    most = Baseline(AT_MOST, max(ERROR, 2 * pytorch.distance))
    return compare(f"{model}, largest error of a parameter", graph.distance, 1.0, limit=most)


def compare_costs(submodel: Submodel, model: str, batch: int, graph: str) -> Iterator[Row]:
    """Yield the rows of time and memory, from processes that take turns."""
    runs, others = list[step_process.Taken](), list[step_process.Taken]()
    for _ in range(TURNS):
        runs.append(step_process.ask(submodel, model, batch, graph))
        others.append(step_process.ask(submodel, model, batch + 1))  # as many as the graph takes
    ours, theirs = step_process.find_median(runs), step_process.find_median(others)
    time_goal = 1 / TIMES[family] if (family := submodel.network.family) in TIMES else None
    for name, mine, other, goal in (
        ("step (ms)", 1000 * ours.seconds, 1000 * theirs.seconds, time_goal),
        ("memory (MB)", ours.peak / 1e6, theirs.peak / 1e6, 1 / MEMORY),
        ("start until the first step (s)", ours.ready, theirs.ready, None),
    ):
        yield compare(f"{model}, {name}", mine, goal, peer=Baseline(PYTORCH, other))


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
def command(models: tuple[str, ...], batch: int, steps: int, say: Say) -> Iterator[Row | Failure]:
    """Compare training steps as ONNX graphs with PyTorch.

    Export a step of one network of each family, and compare its results, time and memory.
    """
    with (
        tempfile.TemporaryDirectory(prefix="espalier-") as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # the exporter's own
        for model in models or MODELS:
            try:
                yield from measure(model, batch, steps, Path(folder), say)
            except (ExportError, subprocess.CalledProcessError) as error:
                yield Failure(model, str(error))
