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
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import torch
from torch import nn

from export import graph_variants, onnx_export, onnx_session
from export.onnx_session import Array
from export.quantize import quantize
from federated.data.loading import load_central
from federated.errors import ExportError
from federated.runtime.console import FORMAT, print_result, report_errors
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
LOST = 0.01  # most accuracy that int8 may lose
SIZE = 0.29  # most size of the int8 file, as a fraction of the float32 file
EXAMPLES = 128 + 2048


@dataclass(frozen=True)
class Goal:
    """Goals for a network.

    fp32: least speed relative to PyTorch's eager mode, in float32
    int8: the same in int8; 0: no goal
    size: most size of the int8 file, as a fraction of the float32 file
    """

    fp32: float
    int8: float = 0.0
    size: float = SIZE


NETWORKS: Mapping[tuple[str, int], Goal] = {
    ("resnet-18-cifar", 32): Goal(1.6, 4.0),
    ("resnet-18", 224): Goal(1.6, 4.0),
    ("mobilenet-v2", 224): Goal(2.5),
    ("efficientnet-v2s", 224): Goal(1.9),
}


@dataclass(frozen=True)
class Speed:
    """Speed of a network, in milliseconds of processor time: medians of turns that alternate in one
    run.

    eager_ms, fp32_ms, int8_ms: PyTorch, exported graph, faster kind of int8
    int8_kind: the faster kind
    fp32_ratio, int8_ratio: eager's time over theirs
    fp32_bytes: size of the float32 file
    size_ratio: size of the larger int8 file over the float32 file
    goal: goals of the network
    met: True if all goals are met
    """

    name: str
    eager_ms: float
    fp32_ms: float
    int8_ms: float
    int8_kind: str
    fp32_ratio: float
    int8_ratio: float
    fp32_bytes: int
    size_ratio: float
    goal: Goal
    met: bool


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of a trained network in float32, and in the kind of int8 that loses more.

    examples: number used for neither training nor calibration
    """

    name: str
    examples: int
    accuracy_fp32: float
    accuracy_int8: float
    int8_kind: str
    goal: float
    met: bool


def time_network(model: str, side: int, goal: Goal, folder: Path) -> Speed:
    """Time one network; it predicts one image at a time."""
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
    size = path.stat().st_size
    ratios = (
        ms["eager"] / ms["fp32"],
        ms["eager"] / ms[kind],
        max(file.stat().st_size for name, file in paths.items() if name != "fp32") / size,
    )
    met = ratios[0] >= goal.fp32 and ratios[1] >= goal.int8 and ratios[2] <= goal.size
    return Speed(
        f"{model} {side}x{side}",
        ms["eager"],
        ms["fp32"],
        ms[kind],
        kind,
        ratios[0],
        ratios[1],
        size,
        ratios[2],
        goal,
        met,
    )


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
) -> Accuracy:
    """Train a network, and compare both kinds of int8 with float32. Return the comparison of the
    kind that loses more accuracy.
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
    if len(scores) < 2:
        raise ExportError(
            f"{model} on {data} has no int8 graph: {'; '.join(absent) or 'no labels'}"
        )
    fp32, kind = scores.pop("fp32"), min(scores, key=lambda name: scores[name])
    return Accuracy(
        f"{model} on {data}",
        len(examples.x),
        fp32,
        scores[kind],
        kind,
        LOST,
        not absent and fp32 - scores[kind] <= LOST + 1e-9,
    )


def sample_examples(x: Array, y: Array) -> tuple[Array, Array]:
    chosen = np.random.default_rng(0).permutation(len(x))[:EXAMPLES]
    return x[chosen], y[chosen]


def format_table(speeds: list[Speed], accuracy: Accuracy) -> list[str]:
    shown = [
        f"{'':26}{'eager ms':>9}{'fp32 ms':>9}{'int8 ms':>9}{'fp32':>8}{'int8':>8}{'size':>7} "
        "  goal"
    ]
    for row in speeds:
        goal = (
            f"{row.goal.fp32:g}x, "
            f"{f'{row.goal.int8:g}x, ' if row.goal.int8 else ''}{row.goal.size:g}: "
            f"{'met' if row.met else 'missed'}"
        )
        times = (
            f"{row.eager_ms:9.2f}{row.fp32_ms:9.2f}{row.int8_ms:9.2f}"
            f"{row.fp32_ratio:7.2f}x{row.int8_ratio:7.2f}x{row.size_ratio:7.3f}"
        )
        shown.append(f"{row.name:26}{times}   {goal}")
    scores = (
        f"accuracy {accuracy.accuracy_fp32:.4f} in float32, {accuracy.accuracy_int8:.4f} in "
        f"{accuracy.int8_kind}"
    )
    goal = f"within {accuracy.goal:g}: {'met' if accuracy.met else 'missed'}"
    return [*shown, f"{accuracy.name}: {scores}, on {accuracy.examples} examples; {goal}"]


@click.command("inference")
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
@FORMAT
def command(model: str, data: str, data_root: Path | None, steps: int, form: str) -> None:
    """Time inference with exported networks and with PyTorch.

    One thread predicts one example at a time. Also train a network, and measure the accuracy that
    it loses in int8.
    """
    with (
        report_errors("python -m benchmarks inference", "export", "interrupted"),
        tempfile.TemporaryDirectory(prefix="espalier-") as folder,
    ):
        # first, because it reports unknown names and files
        accuracy = measure_accuracy(model, data, data_root, steps, Path(folder))
        speeds = [
            time_network(name, side, goal, Path(folder)) for (name, side), goal in NETWORKS.items()
        ]
        found = {
            "batch": 1,
            "threads": 1,
            "speed": [asdict(row) for row in speeds],
            "accuracy": asdict(accuracy),
        }
        print_result(found, form, lambda _: "\n".join(format_table(speeds, accuracy)))
