"""`python -m benchmarks inference`: time one prediction on one thread with PyTorch, the exported
graph and its int8 version, and measure the accuracy that int8 loses.

The timed networks are untrained, since time does not depend on the weights. The network whose
accuracy is measured is trained here.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch
from torch import nn

from benchmarks.comparison.command import benchmark
from benchmarks.comparison.rows import Baseline, Row, compare, compare_errors
from export import graph_variants, onnx_export, onnx_session
from export.onnx_session import Array
from export.quantize import quantize
from federated.data.loading import load_central
from federated.errors import ExportError
from federated.runtime.console import Say
from federated.runtime.extension_errors import explain_lookup
from federated.task import Recipe
from federated.training.training_loop import train
from models.families.catalogue import POINT
from models.named_network import network
from models.submodel import Moments, Submodel
from models.submodel_building import build, full

__all__ = ["command"]

TURNS, WARM_UP = 40, 5
CALIBRATED = 8  # examples of noise; the ranges that they set do not affect time
SIZE = 0.29  # most size of the int8 file, as a fraction of the float32 file
EXAMPLES = 128 + 2048
EAGER = "PyTorch"


@dataclass(frozen=True)
class Goal:
    """Goals for a network.

    fp32: least speed relative to PyTorch's eager mode, in float32
    int8: the same in int8; None: no goal
    size: most size of the int8 file, as a fraction of the float32 file
    """

    fp32: float
    int8: float | None = None
    size: float = SIZE


NETWORKS: Mapping[tuple[str, int], Goal] = {
    ("resnet-18-cifar", 32): Goal(1.6, 4.0),
    ("resnet-18", 224): Goal(1.6, 4.0),
    ("mobilenet-v2", 224): Goal(2.5),
    ("efficientnet-v2s", 224): Goal(1.9),
}


def time_network(model: str, side: int, goal: Goal, folder: Path) -> list[Row]:
    """Time one network; it predicts one image at a time. Compare with PyTorch, and the size of the
    larger int8 file with that of float32.
    """
    made = network(model, (3, side, side), 1000, Moments((123.0, 116.0, 103.0), (58.0, 57.0, 57.0)))
    submodel = full(made)
    net = build_random(submodel)
    x = np.random.default_rng(0).integers(0, 256, (CALIBRATED, 3, side, side)).astype(np.uint8)
    path = onnx_export.export(
        net,
        made,
        x[:2],
        folder / f"{model}.onnx",
        {"run": "benchmark", "round": 0, "submodel": submodel.name},
    )
    paths = {
        "fp32": path,
        **{
            kind: quantize(path, kind, x, folder / f"{model}.{kind}.onnx")
            for kind in ("int8-u8s8", "int8-s8s8")
        },
    }
    sessions = {name: onnx_session.load(file, threads=1) for name, file in paths.items()}
    one = torch.from_numpy(x[:1])
    with torch.inference_mode(), use_one_thread():
        eager: dict[str, Callable[[], object]] = {"eager": lambda: net(one)}
        ms = time_medians(
            eager
            | {
                name: lambda session=session: session.predict(x[:1])
                for name, session in sessions.items()
            }
        )
    kind = min(("int8-u8s8", "int8-s8s8"), key=lambda name: ms[name])
    name, eager = f"{model} {side}x{side}", Baseline(EAGER, ms["eager"])
    sizes = {kind: file.stat().st_size / 1e6 for kind, file in paths.items()}
    whole = Baseline("float32", sizes.pop("fp32"))
    return [
        compare(f"{name}, float32 (ms)", ms["fp32"], goal.fp32, peer=eager),
        compare(f"{name}, {kind} (ms)", ms[kind], goal.int8, peer=eager),
        compare(f"{name}, int8 file (MB)", max(sizes.values()), 1 / goal.size, limit=whole),
    ]


def build_random(submodel: Submodel) -> nn.Module:
    """Return a network whose numbers all differ, as in a trained one: the exporter drops zeros, and
    stores equal tensors once.
    """
    torch.manual_seed(0)
    net = build(submodel)
    with torch.no_grad():
        for name, value in net.state_dict().items():
            if value.dim() == 1 and value.is_floating_point():
                value.copy_(
                    torch.empty_like(value).uniform_(0.5, 1.5)
                    if name.endswith(("weight", "var"))
                    else torch.randn_like(value) / 10
                )
    return net.eval()


def time_medians(tasks: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return milliseconds of this thread's processor time for each task, run in turns. Time of
    other threads does not count.
    """
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(WARM_UP + TURNS):
        for name, task in tasks.items():
            start = time.thread_time()
            task()
            if turn >= WARM_UP:
                times[name].append((time.thread_time() - start) * 1000)
    return {name: statistics.median(values) for name, values in times.items()}


@contextlib.contextmanager
def use_one_thread() -> Iterator[None]:
    """Run PyTorch with one thread inside this context."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_accuracy(
    model: str, data: str, root: Path | None, steps: int, folder: Path
) -> list[Row]:
    """Train a network, and compare the errors of both kinds of int8 with float32, on examples that
    are used for neither training nor calibration.
    """
    whole = load_central(data, root)
    card = whole.card()
    with explain_lookup(POINT):
        made = network(model, card.inputs, card.outputs, card, card.target)
    submodel = full(made)
    torch.manual_seed(0)
    net = build(submodel)
    recipe = Recipe(epochs=1 + steps * 32 // len(whole.x), steps=steps, norm="tracked")
    train(net, submodel, recipe, whole, seed=0)
    examples = graph_variants.split(*sample_examples(whole.x_held, whole.y_held))
    origin = {"run": "benchmark", "round": 0, "submodel": submodel.name}
    graphs, absent = graph_variants.write_graphs(folder, submodel, net, origin, examples, int8=True)
    scores = {variant.kind: variant.accuracy for variant in graphs if variant.accuracy is not None}
    if absent or len(scores) < 2:
        raise ExportError(
            f"{model} on {data} lacks an int8 graph: {'; '.join(absent) or 'no labels'}"
        )
    fp32 = scores.pop("fp32")
    return [
        compare_errors(f"{model} on {data}, {kind}", score, "float32", fp32)
        for kind, score in scores.items()
    ]


def sample_examples(x: Array, y: Array) -> tuple[Array, Array]:
    chosen = np.random.default_rng(0).permutation(len(x))[:EXAMPLES]
    return x[chosen], y[chosen]


@benchmark("inference", "export")
@click.option(
    "--model",
    default="resnet-small",
    show_default=True,
    metavar="NAME",
    help="network whose accuracy is measured",
)
@click.option(
    "--data", default="digits", show_default=True, metavar="NAME|PATH", help="data set to train on"
)
@click.option(
    "--data-root",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="folder of named data sets; missing ones are downloaded",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    metavar="N",
    help="number of steps to train this network",
)
def command(model: str, data: str, data_root: Path | None, steps: int, say: Say) -> list[Row]:
    """Time inference with exported networks and with PyTorch.

    One thread predicts one example at a time. Also train a network, and measure the accuracy that
    it loses in int8.
    """
    with tempfile.TemporaryDirectory(prefix="espalier-") as folder:
        # first, because it reports unknown names and files
        errors = measure_accuracy(model, data, data_root, steps, Path(folder))
        times = list[Row]()
        for (name, side), goal in NETWORKS.items():
            say(f"timing {name}")
            times += time_network(name, side, goal, Path(folder))
        return times + errors
