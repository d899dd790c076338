"""`python -m benchmarks inference`: time one prediction on one thread with PyTorch, the exported
graph and its int8 version, and both in OpenVINO, and measure the accuracy that int8 loses.

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
from functools import partial
from importlib.util import find_spec
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
from export.release_reader import Kind
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

__all__ = ["Goal", "build_random", "command", "make_rows", "open_with_openvino"]

TURNS, WARM_UP = 40, 5
CALIBRATED = 8  # examples of noise; the ranges that they set do not affect time
SIZE = 0.29  # most size of the int8 file, as a fraction of the float32 file
EXAMPLES = 128 + 2048
EAGER, OPENVINO = "PyTorch", "openvino"
SLOWER = 1.05  # most times of OpenVINO's time
INT8: tuple[Kind, ...] = ("int8-u8s8", "int8-s8s8")


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
    """Time one network; it predicts one image at a time. Compare with PyTorch and OpenVINO, and the
    size of the larger int8 file with that of float32.
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
    paths: dict[str, Path] = {
        "fp32": path,
        **{kind: quantize(path, kind, x, folder / f"{model}.{kind}.onnx") for kind in INT8},
    }
    sessions = {name: onnx_session.load(file, threads=1) for name, file in paths.items()}
    one = torch.from_numpy(x[:1])
    with torch.inference_mode(), use_one_thread():
        tasks: dict[str, Callable[[], object]] = {
            EAGER: lambda: net(one),
            **{name: partial(session.predict, x[:1]) for name, session in sessions.items()},
        }
        if find_spec(OPENVINO):
            tasks |= {
                f"{OPENVINO} {name}": open_with_openvino(file, x[:1])
                for name, file in paths.items()
            }
        ms = time_medians(tasks)
    return make_rows(f"{model} {side}x{side}", goal, ms, paths)


def open_with_openvino(path: Path, x: Array) -> Callable[[], object]:
    """Return a function that predicts with OpenVINO, in float32 unless the graph has int8."""
    import openvino  # only where it is installed

    hints = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(path, "CPU", hints).create_infer_request()
    return lambda: request.infer([x])[0]


def make_rows(
    name: str, goal: Goal, ms: Mapping[str, float], paths: Mapping[str, Path]
) -> list[Row]:
    """Return the comparisons of what was measured.

    ms: milliseconds of PyTorch, and of each graph here and in OpenVINO
    paths: of the graphs
    """
    sizes = {kind: file.stat().st_size / 1e6 for kind, file in paths.items()}
    whole = Baseline("float32", sizes.pop("fp32"))
    rows = list[Row]()
    for what, kinds, least in (("float32", ("fp32",), goal.fp32), ("int8", INT8, goal.int8)):
        ours = min(ms[kind] for kind in kinds)
        rows.append(compare(f"{name}, {what} (ms)", ours, least, peer=Baseline(EAGER, ms[EAGER])))
        if theirs := [ms[key] for kind in kinds if (key := f"{OPENVINO} {kind}") in ms]:
            peer = Baseline(OPENVINO, min(theirs))
            rows.append(compare(f"{name}, {what} (ms)", ours, 1 / SLOWER, peer=peer))
    return [
        *rows,
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
    """Return milliseconds of processor time for each task, run in turns."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(WARM_UP + TURNS):
        for name, task in tasks.items():
            start = time.process_time()
            task()
            if turn >= WARM_UP:
                times[name].append((time.process_time() - start) * 1000)
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


@benchmark("inference", "export", packages=(OPENVINO,))
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
        if not find_spec(OPENVINO):
            say(f"not compared with {OPENVINO}, which is not installed: pip install {OPENVINO}")
        for (name, side), goal in NETWORKS.items():
            say(f"timing {name}")
            times += time_network(name, side, goal, Path(folder))
        return times + errors
