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

from federated import objective
from federated.errors import DataError, Refused
from federated.scores import add
from federated.task import Recipe, Task, Update
from models.families import build, shapes, statistics
from models.norms import calibrate as measure
from models.norms import set_norm
from models.submodel import Submodel

__all__ = ["Diverged", "Examples", "Stopped", "Tallies", "Trained", "calibrate", "evaluate", "perform", "train"]

Array = NDArray[Any]
Step = Callable[[int, int, float], None]
"""Told after every step: steps taken, steps in all, loss."""

Tallies = dict[str, dict[str, list[float]]]
"""Sums over examples by view; see `evaluate`."""

OPTIMISERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


class Stopped(Exception):
    """The caller's `stop` said so between two steps."""


class Diverged(RuntimeError):
    """The loss left the finite numbers."""


class Examples(Protocol):
    """A device's data: raw arrays, examples first; `labels` are the classes (or tokens) of the training part."""

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
    """loss: mean over the examples of the last pass. steps: of the optimiser."""

    loss: float
    steps: int


def train(
    net: nn.Module,
    submodel: Submodel,
    recipe: Recipe,
    x: Array,
    y: Array,
    *,
    labels: Collection[int],
    seed: int,
    on_step: Step | None = None,
    stop: Callable[[], bool] | None = None,
) -> Trained:
    """Trains `net`, which is `submodel`, in place, on the device where it lies, on raw examples x [n, *inputs] with what they teach, y [n, ...].

    labels: classes that the data hold, for the masked loss. Raises DataError without an example, Stopped, Diverged.
    """
    check(x, y)
    set_norm(net, recipe.norm)
    net.train()
    device = next(net.parameters()).device
    optimiser = prepared(net, recipe)
    generator = torch.Generator().manual_seed(seed)
    planned = recipe.epochs * len(cuts(len(y), recipe.batch))
    total = min(recipe.steps, planned) if recipe.steps else planned
    steps, loss = 0, 0.0
    while steps < total:
        summed, seen = 0.0, 0
        for chosen in itertools.islice(shuffled(len(y), recipe.batch, generator), total - steps):
            if stop is not None and stop():
                raise Stopped
            shown, truth = objective.pose(submodel.network, recipe.hide, moved(x[chosen], device), moved(y[chosen], device), generator)
            value = descend(net, submodel, optimiser, recipe, shown, truth, labels)
            steps += 1
            if not math.isfinite(value):
                raise Diverged(f"the loss is {value} after {steps} of {total} steps; a smaller learning rate than {recipe.lr:g} may help")
            summed, seen = summed + value * len(chosen), seen + len(chosen)
            if on_step is not None:
                on_step(steps, total, value)
        loss = summed / seen
    return Trained(loss, steps)


def prepared(net: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser over all parameters, without state."""
    made: Callable[..., torch.optim.Optimizer] = OPTIMISERS[recipe.optimiser]
    own = {"momentum": recipe.momentum} if recipe.optimiser == "sgd" else {}
    fused = next(net.parameters()).device.type in {"cpu", "cuda"}
    return made(net.parameters(), lr=recipe.lr, weight_decay=recipe.decay, fused=fused, **own)


def descend(
    net: nn.Module, submodel: Submodel, optimiser: torch.optim.Optimizer, recipe: Recipe, x: Tensor, truth: Tensor, labels: Collection[int]
) -> float:
    """One step; the loss before it: the mean over exits, where there are several."""
    outs = objective.answers(net, submodel, x)
    losses = [objective.loss(submodel.network, objective.masked(out, labels) if recipe.masked else out, truth) for out in outs]
    loss = torch.stack(losses).mean() if len(losses) > 1 else losses[0]
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


def evaluate(
    net: nn.Module,
    submodel: Submodel,
    recipe: Recipe,
    x: Array,
    y: Array,
    *,
    labels: Collection[int] = (),
    stop: Callable[[], bool] | None = None,
) -> Tallies:
    """Tallies of raw examples, in evaluation mode: "all", where every class may be answered; "exit0" and on, where there are several exits, and
    "ensemble", the mean of their logits (DepthFL, Kim et al., ICLR 2023); "labels" where labels are given: with the logits of other classes set
    to 0 (HeteroFL's local accuracy). Empty of no example."""
    net.eval()
    device = next(net.parameters()).device
    network, found = submodel.network, dict[str, list[dict[str, list[float]]]]()
    with torch.inference_mode():
        for start in range(0, len(y), recipe.batch):
            if stop is not None and stop():
                raise Stopped
            there = slice(start, start + recipe.batch)
            hiding = torch.Generator().manual_seed(start)  # the same tokens are hidden from everyone
            shown, truth = objective.pose(network, recipe.hide, moved(x[there], device), moved(y[there], device), hiding)
            outs = objective.answers(net, submodel, shown)
            views = {"all": outs[-1]}
            if len(outs) > 1:
                views |= {"ensemble": torch.stack(outs).mean(0), **{f"exit{i}": out for i, out in enumerate(outs)}}
            if labels:
                views["labels"] = objective.masked(outs[-1], labels)
            for view, out in views.items():
                found.setdefault(view, []).append(objective.tally(network, out, truth, per_class=recipe.per_class))
    return {view: add(tallies) for view, tallies in found.items()}


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

    train: the new weights, and running statistics under tracked norm; notes loss, and where the recipe asks for them labels and tallies
    "before" and "after". calibrate: running statistics of the weights as received; notes batches. evaluate: no tensors; notes tallies of
    the examples held out, by view. Raises Refused where the tensors are not the submodel's, DataError, Stopped, Diverged.
    """
    recipe, seed = task.recipe, mixed(task)
    net = received(task, tensors).to(device)
    out: Mapping[str, Tensor] = {}
    steps, samples, notes = 0, len(data.y), dict[str, Any]()
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        torch.manual_seed(seed)  # dropout draws from the global generator
        if task.work == "train":
            tallies = named("before", own_scores(net, task, data, seed, stop))
            done = train(net, task.submodel, recipe, data.x, data.y, labels=data.labels, seed=seed, on_step=on_step, stop=stop)
            trained = net.state_dict()
            out = {name: trained[name].clone() for name in travelling(task)}
            tallies |= named("after", own_scores(net, task, data, seed, stop))
            steps, notes = done.steps, {"loss": done.loss, **({"tallies": tallies} if tallies else {})}
            if recipe.labels:
                notes["labels"] = list(data.labels)
        elif task.work == "calibrate":
            out, batches = calibrate(net, data.x, recipe.batch, seed, stop)
            notes = {"batches": batches}
        else:
            labels = data.labels if task.submodel.network.objective == "class" else ()
            tallies = evaluate(net, task.submodel, recipe, data.x_held, data.y_held, labels=labels, stop=stop)
            samples, notes = len(data.y_held), {"tallies": tallies}
    arrays = {name: np.ascontiguousarray(value.detach().cpu().numpy()) for name, value in out.items()}
    made = Update(task.run, task.round, task.attempt, task.agent, task.work, task.submodel, task.version, samples, steps)
    return replace(made, tensors=arrays, notes=notes)


def own_scores(net: nn.Module, task: Task, data: Examples, seed: int, stop: Callable[[], bool] | None) -> Tallies:
    """Tallies of the device's held-out examples as the network is now, its static norms measured on the device's own data; none unless asked for."""
    if not task.recipe.scores or not len(data.y_held):
        return {}
    if task.recipe.norm == "static" and statistics(task.submodel):
        calibrate(net, data.x, task.recipe.batch, seed, stop)
    return evaluate(net, task.submodel, task.recipe, data.x_held, data.y_held, stop=stop)


def named(when: str, tallies: Tallies) -> Tallies:
    """The one that counts every answer, by when it was taken."""
    return {when: tallies["all"]} if tallies else {}


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
