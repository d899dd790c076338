"""`python -m benchmarks trainstep`: export a training step of a network of each family, and compare
it with PyTorch: the error of one step, the losses of 50, time, memory, and what the export takes.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np
import torch

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
from federated.runtime.console import FORMAT, print_result, report_errors, speaker
from federated.task import Recipe
from models.submodel import Submodel
from models.submodel_building import full

__all__ = ["Row", "command", "list_lines", "measure"]

MODELS = (
    *("densenet-small", "efficientnet-tiny", "lenet-5", "mlp-small", "mobilenet-tiny"),
    *("preresnet-small", "resnet-small", "resnet1d-small", "transformer-small"),
    *("transformer-small-causal", "vgg-9-small", "vit-micro"),
)
ERROR = 1e-5  # most error of one step, unless PyTorch's own is larger


@dataclass(frozen=True)
class Row:
    """A network.

    export_s: seconds to export a step
    bytes: size of the graph, which holds no weights
    error: largest difference of a parameter after one step from PyTorch's in float64, relative to
        the largest parameter
    torch_error: the same for PyTorch in float32
    curve: largest difference of a loss, over all steps of a training, from PyTorch's in float64
    torch_curve: the same for PyTorch in float32
    graph_ms, torch_ms: milliseconds of a step on one thread
    graph_peak, torch_peak: most resident bytes of the process
    graph_ready_s, torch_ready_s: seconds to load the runtime and the network
    time, memory: of the graph relative to PyTorch
    problem: why it cannot be exported, or empty
    """

    model: str
    submodel: str
    export_s: float = 0.0
    bytes: int = 0
    error: float = 0.0
    torch_error: float = 0.0
    curve: float = 0.0
    torch_curve: float = 0.0
    graph_ms: float = 0.0
    torch_ms: float = 0.0
    graph_peak: int = 0
    torch_peak: int = 0
    graph_ready_s: float = 0.0
    torch_ready_s: float = 0.0
    problem: str = ""

    @property
    def time(self) -> float:
        return self.graph_ms / self.torch_ms

    @property
    def memory(self) -> float:
        return self.graph_peak / self.torch_peak

    @property
    def met(self) -> bool:
        """Return whether it trains as exactly as PyTorch does."""
        return not self.problem and self.error <= max(ERROR, 2 * self.torch_error)


def measure(model: str, batch: int, steps: int, folder: Path) -> Row:
    """Measure one network."""
    submodel = full(build_network(model, draw_examples(model, 2)))
    recipe = choose_recipe(submodel, batch)
    one = Trial(submodel, replace(recipe, steps=1))
    row, path = Row(model, submodel.name), folder / f"{model}.onnx"
    start = time.perf_counter()
    try:
        function = one.make_function()
        graph = export_graph(function)
    except ExportError as error:
        return replace(row, problem=str(error))
    seconds = time.perf_counter() - start
    path.write_bytes(graph)
    take, curves = open_graph(graph), replace(one, recipe=replace(recipe, epochs=-(-steps // 2)))
    step, training = (compare(trial, function, take) for trial in (one, curves))
    ours_taken = step_process.ask(submodel, model, batch, str(path))
    theirs_taken = step_process.ask(submodel, model, batch + 1)  # as many examples as the graph
    return replace(
        row,
        export_s=seconds,
        bytes=len(graph),
        error=step[0].distance,
        torch_error=step[1].distance,
        curve=training[0].losses,
        torch_curve=training[1].losses,
        graph_ms=ours_taken.seconds * 1000,
        torch_ms=theirs_taken.seconds * 1000,
        graph_peak=ours_taken.peak,
        torch_peak=theirs_taken.peak,
        graph_ready_s=ours_taken.ready,
        torch_ready_s=theirs_taken.ready,
    )


@dataclass(frozen=True)
class Deviation:
    """Deviation from PyTorch's training in float64. distance: of the parameters. losses: the
    largest of a loss.
    """

    distance: float
    losses: float


def compare(trial: Trial, function: GraphFunction, take: Take) -> list[Deviation]:
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


def choose_recipe(submodel: Submodel, batch: int) -> Recipe:
    """Return AdamW for transformers of text, and SGD with momentum for all others."""
    if submodel.network.objective in ("next", "masked"):
        return Recipe(batch=batch, optimiser="adamw", lr=0.001, decay=0.01)
    return Recipe(batch=batch, lr=0.01, decay=5e-4)


def list_lines(rows: Sequence[Row]) -> list[str]:
    """Return the results as a table."""
    titles = "network", "error", "torch", "losses", "ms", "torch", "time", "MB", "memory", "export"
    lines = [
        "{:26} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6} {:>6} {:>7} {:>8}".format(*titles),
    ]
    for row in rows:
        if row.problem:
            lines.append(f"{row.model:26} {row.problem}")
            continue
        lines.append(
            f"{row.model:26} {row.error:8.1e} {row.torch_error:8.1e} {row.curve:8.1e} "
            f"{row.graph_ms:8.1f} {row.torch_ms:8.1f} {row.time:5.2f}x {row.graph_peak / 1e6:6.0f} "
            f"{row.memory:6.2f}x {row.export_s:6.1f} s{'' if row.met else '   inexact'}"
        )
    return lines


@click.command("trainstep")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    help="measure only this network, or module:function; may be repeated",
)
@click.option("--batch", type=click.IntRange(min=2), default=32, show_default=True, metavar="N")
@click.option(
    "--steps",
    type=click.IntRange(min=2),
    default=50,
    show_default=True,
    metavar="N",
    help="length of the training whose losses are compared",
)
@FORMAT
def command(models: tuple[str, ...], batch: int, steps: int, form: str) -> None:
    """Compare training steps as ONNX graphs with PyTorch.

    Export a step of one network of each family, and compare its results, time and memory.
    """
    with (
        report_errors("python -m benchmarks trainstep", "export", "interrupted"),
        tempfile.TemporaryDirectory(prefix="espalier-") as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # the exporter's own
        say, rows = speaker(form), list[Row]()
        for model in models or MODELS:
            rows.append(measure(model, batch, steps, Path(folder)))
            say(list_lines(rows[-1:])[1])
        found = [
            asdict(row) | ({} if row.problem else {"time": row.time, "memory": row.memory})
            for row in rows
        ]
        print_result({"networks": found}, form, lambda _: "\n".join(list_lines(rows)))
        if not all(row.met for row in rows):
            sys.exit(1)
