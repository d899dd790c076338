"""What a device does with PyTorch: the training loop that reads a recipe, calibration, evaluation, and a whole task from end to end.

On a CPU, with one thread count, the result is the same bits for the same weights, data, recipe and seed.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.errors import DataError, Refused
from federated.task import Recipe, Task, Update
from models.families import build, shapes, statistics
from models.norms import calibrate as measure
from models.norms import set_norm
from models.submodel import Submodel

__all__ = ["Diverged", "Examples", "Stopped", "Trained", "calibrate", "evaluate", "masked", "perform", "train"]

Array = NDArray[Any]
Step = Callable[[int, int, float], None]
"""Told after every step: steps taken, steps in all, loss."""

OPTIMISERS = {"sgd": torch.optim.SGD}


class Stopped(Exception):
    """The caller's `stop` said so between two steps."""


class Diverged(RuntimeError):
    """The loss left the finite numbers."""


class Examples(Protocol):
    """A device's data: raw arrays, examples first; `labels` are the classes of the training part."""

    @property
    def x(self) -> Array: ...
    @property
    def y(self) -> Array: ...
    @property
    def x_held(self) -> Array: ...
    @property
    def y_held(self) -> Array: ...
    @property
    def labels(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Trained:
    """loss: mean over the examples of the last epoch. steps: of the optimiser."""

    loss: float
    steps: int


def masked(logits: Tensor, labels: Collection[int]) -> Tensor:
    """Logits with those of absent classes set to 0, not to minus infinity (HeteroFL, section 3; the authors' code)."""
    held = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
    held[list(labels)] = True
    return torch.where(held, logits, 0.0)


def train(
    net: nn.Module,
    recipe: Recipe,
    x: Array,
    y: Array,
    *,
    labels: Collection[int],
    seed: int,
    on_step: Step | None = None,
    stop: Callable[[], bool] | None = None,
) -> Trained:
    """Trains `net` in place, on the device where it lies, on raw examples x [n, *inputs] with labels y [n].

    labels: classes that the data hold, for the masked loss. Raises DataError without an example, Stopped, Diverged.
    """
    check(x, y)
    set_norm(net, recipe.norm)
    net.train()
    device = next(net.parameters()).device
    optimiser = OPTIMISERS[recipe.optimiser](
        net.parameters(), lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.decay, fused=device.type in {"cpu", "cuda"}
    )
    generator = torch.Generator().manual_seed(seed)
    total = recipe.epochs * len(cuts(len(y), recipe.batch))
    steps, loss = 0, 0.0
    for _ in range(recipe.epochs):
        summed = 0.0
        for chosen in shuffled(len(y), recipe.batch, generator):
            if stop is not None and stop():
                raise Stopped
            value = descend(net, optimiser, recipe, moved(x[chosen], device), moved(y[chosen], device), labels)
            steps += 1
            if not math.isfinite(value):
                raise Diverged(f"the loss is {value} after {steps} of {total} steps; a smaller learning rate than {recipe.lr:g} may help")
            summed += value * len(chosen)
            if on_step is not None:
                on_step(steps, total, value)
        loss = summed / len(y)
    return Trained(loss, steps)


def descend(net: nn.Module, optimiser: torch.optim.Optimizer, recipe: Recipe, x: Tensor, y: Tensor, labels: Collection[int]) -> float:
    """One step; the loss before it."""
    logits = net(x)
    loss = F.cross_entropy(masked(logits, labels) if recipe.masked else logits, y)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    if recipe.clip > 0:
        nn.utils.clip_grad_norm_(net.parameters(), recipe.clip)
    optimiser.step()
    return float(loss.detach())


def calibrate(net: nn.Module, x: Array, batch: int, seed: int, stop: Callable[[], bool] | None = None) -> tuple[dict[str, Tensor], int]:
    """Batch norm statistics over one shuffled pass through x, and the number of batches; they stay in `net` too.

    Shuffled, since batches of one class each would give the norms another spread than training saw.
    """
    check(x, x)
    device = next(net.parameters()).device

    def batches() -> Iterator[Tensor]:
        for chosen in shuffled(len(x), batch, torch.Generator().manual_seed(seed)):
            if stop is not None and stop():
                raise Stopped
            yield moved(x[chosen], device)

    return measure(net, batches())


def evaluate(net: nn.Module, x: Array, y: Array, batch: int, stop: Callable[[], bool] | None = None) -> tuple[float, int, int]:
    """Sum of the losses, number of right answers, and number of examples; every class may be answered."""
    net.eval()
    device = next(net.parameters()).device
    loss, correct = 0.0, 0
    with torch.inference_mode():
        for start in range(0, len(y), batch):
            if stop is not None and stop():
                raise Stopped
            logits, truth = net(moved(x[start : start + batch], device)), moved(y[start : start + batch], device)
            loss += float(F.cross_entropy(logits, truth, reduction="sum"))
            correct += int((logits.argmax(1) == truth).sum())
    return loss, correct, len(y)


def perform(
    task: Task,
    tensors: Mapping[str, Array],
    data: Examples,
    *,
    device: str = "cpu",
    on_step: Step | None = None,
    stop: Callable[[], bool] | None = None,
) -> Update:
    """Does a task on received weights and gives the update, its tensors as contiguous numpy arrays by local name.

    train: the new weights, and running statistics under tracked norm; notes labels, loss. calibrate: running statistics of the weights as
    received; notes batches. evaluate: no tensors; notes loss (mean), correct; the examples are those held out.
    Raises Refused where the tensors are not the submodel's, DataError, Stopped, Diverged.
    """
    recipe, seed = task.recipe, mixed(task)
    net = received(task, tensors).to(device)
    out: Mapping[str, Tensor] = {}
    steps, samples, notes = 0, len(data.y), dict[str, Any]()
    if task.work == "train":
        done = train(net, recipe, data.x, data.y, labels=data.labels, seed=seed, on_step=on_step, stop=stop)
        steps, notes = done.steps, {"labels": list(data.labels), "loss": done.loss}
        out = {name: net.state_dict()[name] for name in travelling(task)}
    elif task.work == "calibrate":
        out, batches = calibrate(net, data.x, recipe.batch, seed, stop)
        notes = {"batches": batches}
    else:
        loss, correct, samples = evaluate(net, data.x_held, data.y_held, recipe.batch, stop)
        notes = {"loss": loss / max(samples, 1), "correct": correct}
    arrays = {name: np.ascontiguousarray(value.detach().cpu().numpy()) for name, value in out.items()}
    made = Update(task.run, task.round, task.attempt, task.agent, task.work, task.submodel, task.version, samples, steps)
    return replace(made, tensors=arrays, notes=notes)


def travelling(task: Task) -> dict[str, tuple[int, ...]]:
    """What must come with a task: parameters, and running statistics where they are part of the weights or are to be evaluated."""
    submodel: Submodel = task.submodel
    with_statistics = task.work == "evaluate" or (task.work == "train" and task.recipe.norm == "tracked")
    return shapes(submodel) | (statistics(submodel) if with_statistics else {})


def received(task: Task, tensors: Mapping[str, Array]) -> nn.Module:
    """The submodel's network with the tensors in it; torch's random state stays as it was."""
    allowed = shapes(task.submodel) | statistics(task.submodel)
    if odd := (travelling(task).keys() - tensors.keys()) | (tensors.keys() - allowed.keys()):
        raise Refused(f"weights of {task.submodel.name} to {task.work}: missing or too many: {', '.join(sorted(odd)[:4])} ({len(odd)} in all)")
    with torch.random.fork_rng(devices=[]):
        net = build(task.submodel)
    state = net.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, value in tensors.items():
            if tuple(value.shape) != allowed[name]:
                raise Refused(f"tensor {name} of {task.submodel.name}: expected shape {allowed[name]}, found {tuple(value.shape)}")
            state[name].copy_(torch.from_numpy(np.array(value)))  # a copy: what was received may be read-only
    return net


def mixed(task: Task) -> int:
    """A seed of the recipe's, the round and the agent, below 2^63 as torch wants it."""
    digest = hashlib.sha256(f"{task.recipe.seed}/{task.round}/{task.agent}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def shuffled(examples: int, batch: int, generator: torch.Generator) -> Iterator[NDArray[np.int64]]:
    """One pass over the examples in random order, as indices batch by batch."""
    order: NDArray[np.int64] = torch.randperm(examples, generator=generator).numpy()
    return (order[start:end] for start, end in cuts(examples, batch))


def cuts(examples: int, batch: int) -> list[tuple[int, int]]:
    """(start, end) of each batch. A last batch of one example joins the one before it: batch norm needs two to see a spread."""
    edges = [*range(0, examples, batch), examples]
    if len(edges) > 2 and edges[-1] - edges[-2] == 1:
        del edges[-2]
    return list(itertools.pairwise(edges))


def moved(values: Array, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


def check(x: Array, y: Array) -> None:
    if not len(y) or len(x) != len(y):
        raise DataError(f"training data: expected at least 1 example and as many labels, found {len(x)} and {len(y)}")
