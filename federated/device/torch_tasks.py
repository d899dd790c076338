"""What a device does with PyTorch: a survey when it joins, and whole tasks: training, calibration,
evaluation.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from federated.engine.tallies import Tallies, add
from federated.errors import Refused
from federated.methods.catalogue import method
from federated.settings import validated
from federated.task import Recipe, Task, Update
from federated.training import device_memory, objective
from federated.training.hooks import Survey
from federated.training.loop import (
    Array,
    Step,
    Stopped,
    TrainingData,
    TrainingSet,
    check,
    descend,
    moved,
    open_session,
    shuffled,
)
from federated.training.variates import kept_name
from federated.wire import tensors as blobs
from federated.wire.codecs import update_file
from federated.wire.codecs.catalogue import codec
from federated.wire.messages import Run
from models.families.catalogue import build, shapes, statistics
from models.layers.batch_norm import calibrate as measure
from models.submodel import Submodel

__all__ = [
    "Examples",
    "Execution",
    "calibrate",
    "errand",
    "evaluate",
    "perform",
    "surveyed",
]

"""Sums over examples by view; see `evaluate`."""


class Examples(TrainingData, Protocol):
    """A device's data: those to train on, and x_held, y_held, those never trained on."""

    @property
    def x_held(self) -> Array: ...
    @property
    def y_held(self) -> Array: ...


@dataclass(frozen=True)
class Execution:
    """How a task is carried out.

    device: where PyTorch computes, such as "cpu" or "cuda".
    on_step: called after every training step.
    stop: asked between steps or batches whether to stop.
    """

    device: str = "cpu"
    on_step: Step | None = None
    stop: Callable[[], bool] | None = None


@dataclass(frozen=True)
class _Result:
    """What a task gave.

    out: tensors of the update, by local name.
    samples: number of examples.
    notes: of the update.
    steps: of the optimiser.
    remembered: tensors that the device keeps.
    """

    out: Mapping[str, Tensor]
    samples: int
    notes: dict[str, Any]
    steps: int = 0
    remembered: Mapping[str, Tensor] = field(default_factory=dict)


def surveyed(run: Run, data: Examples, memory: int, device: str) -> dict[str, Any]:
    """What the run's method asks of a device that joins; nothing, where it asks nothing. Raises
    Unknown for a method that is not here, ConfigError for settings that it does not take.
    """
    if run.network is None or not run.menu:
        return {}
    chosen = method(run.method)
    if chosen.hooks is None or chosen.hooks.survey is None:
        return {}
    settings = validated(chosen.record, run.settings, f"card of run '{run.run}': {chosen.name}")
    return chosen.hooks.survey(
        Survey(
            run.network,
            run.menu,
            settings,
            data.x,
            data.y,
            data.labels,
            memory,
            torch.device(device),
        )
    )


def calibrate(
    net: nn.Module, x: Array, batch: int, seed: int, stop: Callable[[], bool] | None = None
) -> tuple[dict[str, Tensor], int]:
    """Batch norm statistics over one shuffled pass through x, and the number of batches; they stay
    in `net` too.

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
    data: TrainingData,
    stop: Callable[[], bool] | None = None,
) -> Tallies:
    """Tallies of raw examples, in evaluation mode, by view; empty without an example.

    "all": every class may be answered.
    "exit0" and on: of each exit, if there are several.
    "ensemble": the mean of the exits' logits (DepthFL, Kim et al., ICLR 2023).
    "labels": if the data name labels, with the logits of other classes set to 0 (HeteroFL's local
        accuracy).
    """
    net.eval()
    device = next(net.parameters()).device
    network, found = submodel.network, dict[str, list[dict[str, list[float]]]]()
    with torch.inference_mode():
        for start in range(0, len(data.y), recipe.batch):
            if stop is not None and stop():
                raise Stopped
            there = slice(start, start + recipe.batch)
            x, y = moved(data.x[there], device), moved(data.y[there], device)
            # the same tokens are hidden from everyone
            hiding = torch.Generator().manual_seed(start)
            shown, truth = objective.pose(network, recipe.hide, x, y, hiding)
            outs = objective.answers(net, submodel, shown)
            views = {"all": outs[-1]}
            if len(outs) > 1:
                views |= {
                    "ensemble": torch.stack(outs).mean(0),
                    **{f"exit{i}": out for i, out in enumerate(outs)},
                }
            if data.labels:
                views["labels"] = objective.masked(outs[-1], data.labels)
            for view, out in views.items():
                found.setdefault(view, []).append(
                    objective.tally(network, out, truth, per_class=recipe.per_class)
                )
    return {view: add(tallies) for view, tallies in found.items()}


def errand(
    task: Task,
    weights: Path,
    result: Path,
    data: Examples,
    execution: Execution = Execution(),
    effort: Callable[[], Mapping[str, Any]] = dict,
) -> float:
    """Perform a task from file to file: encoded weights in, the encoded update out, and the
    device's memory beside it. Return the loss, NaN if there is none.

    effort: asked at the end for notes on what a training took; they are added to its own.
    Raises Unknown for a codec that is not installed.
    """
    kept = result.parent / device_memory.FOLDER
    known = device_memory.read(kept, task.since, variates(task))
    received = blobs.decode(weights.read_bytes())[1]
    update, remembered = perform(task, received, data, known, execution)
    if remembered:
        device_memory.write(kept, task.round, remembered, since=task.since)
    if task.work == "train":
        update = replace(update, notes={**update.notes, **effort()})
    result.write_bytes(update_file.encode(update, codec(task.codec)))
    return float(update.notes.get("loss", math.nan))


def variates(task: Task) -> dict[str, tuple[int, ...]]:
    """Shapes of the variates that a task needs of the device's memory, by their names there."""
    needed = task.work == "train" and bool(task.recipe.variate)
    return (
        {
            kept_name(task.recipe, task.submodel, name): shape
            for name, shape in shapes(task.submodel).items()
        }
        if needed
        else {}
    )


def perform(
    task: Task,
    tensors: Mapping[str, Array],
    data: Examples,
    kept: Mapping[str, Array] | None = None,
    execution: Execution = Execution(),
) -> tuple[Update, dict[str, Array]]:
    """Perform a task on received weights. Return the update, its tensors as contiguous numpy arrays
    by local name, and what the device is to keep.

    train: the new weights, and running statistics under tracked norm; notes loss, and if the recipe
        asks for them labels and tallies "before" and "after".
    calibrate: running statistics of the weights as received; notes batches.
    evaluate: no tensors; notes tallies of the held-out examples, by view.
    kept: what the device keeps of this run.
    Raises Refused if the tensors are not the submodel's, DataError, Stopped, Diverged.
    """
    kept, device = kept or {}, execution.device
    net = received(task, tensors, kept).to(device)
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        torch.manual_seed(mixed(task))  # dropout draws from the global generator
        if task.work == "train":
            result = _train(net, task, tensors, data, kept, execution)
        elif task.work == "calibrate":
            out, batches = calibrate(net, data.x, task.recipe.batch, mixed(task), execution.stop)
            result = _Result(out, len(data.y), {"batches": batches})
        else:
            labels = data.labels if task.submodel.network.objective == "class" else ()
            held = TrainingSet(data.x_held, data.y_held, labels)
            tallies = evaluate(net, task.submodel, task.recipe, held, execution.stop)
            result = _Result({}, len(data.y_held), {"tallies": tallies})
    made = Update(
        task.run,
        task.round,
        task.attempt,
        task.agent,
        task.work,
        task.submodel,
        task.version,
        result.samples,
        result.steps,
        arrays(result.out),
        result.notes,
    )
    return made, arrays(result.remembered)


def _train(
    net: nn.Module,
    task: Task,
    tensors: Mapping[str, Array],
    data: Examples,
    kept: Mapping[str, Array],
    execution: Execution,
) -> _Result:
    """Train `net`, which holds the tensors, as the task's recipe says."""
    recipe, seed, device = task.recipe, mixed(task), execution.device
    tallies = named("before", own_scores(net, task, data, execution.stop))
    session = open_session(net, task.submodel, recipe, data, seed=seed)
    session.round = task.round
    session.received, session.memory = placed(tensors, device), placed(kept, device)
    done = descend(
        session,
        method(recipe.hook).hooks if recipe.hook else None,
        on_step=execution.on_step,
        stop=execution.stop,
    )
    trained = net.state_dict()
    out = {name: trained[name].clone() for name in travelling(task) if name not in recipe.keep}
    own = {own_home(task, name): trained[name].clone() for name in recipe.keep}
    tallies |= named("after", own_scores(net, task, data, execution.stop))
    notes = {**session.notes, "loss": done.loss}
    if tallies:
        notes["tallies"] = tallies
    if recipe.labels:
        notes["labels"] = list(data.labels)
    return _Result(
        out | session.sent, len(data.y), notes, done.steps, remembered=session.memory | own
    )


def arrays(values: Mapping[str, Tensor]) -> dict[str, Array]:
    return {
        name: np.ascontiguousarray(value.detach().cpu().numpy()) for name, value in values.items()
    }


def placed(values: Mapping[str, Array], device: str) -> dict[str, Tensor]:
    """Copies: what was received may be read-only."""
    return {name: torch.from_numpy(np.array(value)).to(device) for name, value in values.items()}


def own_scores(
    net: nn.Module, task: Task, data: Examples, stop: Callable[[], bool] | None
) -> Tallies:
    """Tallies of the device's held-out examples as the network is now, its static norms measured on
    the device's own data; none unless asked for.
    """
    if not task.recipe.scores or not len(data.y_held):
        return {}
    if task.recipe.norm == "static" and statistics(task.submodel):
        calibrate(net, data.x, task.recipe.batch, mixed(task), stop)
    held = TrainingSet(data.x_held, data.y_held)
    return evaluate(net, task.submodel, task.recipe, held, stop)


def named(when: str, tallies: Tallies) -> Tallies:
    """The one that counts every answer, by when it was taken."""
    return {when: tallies["all"]} if tallies else {}


def travelling(task: Task) -> dict[str, tuple[int, ...]]:
    """What must come with a task: parameters, and running statistics where they are part of the
    weights or are to be evaluated.
    """
    submodel: Submodel = task.submodel
    with_statistics = task.work == "evaluate" or (
        task.work == "train" and task.recipe.norm == "tracked"
    )
    return shapes(submodel) | (statistics(submodel) if with_statistics else {})


def received(task: Task, tensors: Mapping[str, Array], kept: Mapping[str, Array]) -> nn.Module:
    """The submodel's network with the tensors in it, and with what the device keeps of it; torch's
    random state stays as it was.

    What the device is to keep and has not yet is as the network is initialised from the run's seed.
    """
    recipe, allowed = task.recipe, shapes(task.submodel) | statistics(task.submodel)
    own = {name: value for name, value in tensors.items() if "/" not in name}
    wanted = travelling(task).keys() - set(recipe.keep)
    foreign = {
        name for name in tensors.keys() - own.keys() if not recipe.hook and not recipe.variate
    }
    if odd := (wanted - own.keys()) | (own.keys() - allowed.keys()) | foreign:
        raise Refused(
            f"weights of {task.submodel.name} to {task.work}: missing or too many: "
            f"{', '.join(sorted(odd)[:4])} ({len(odd)} in all)"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        net = build(task.submodel)
    state = net.state_dict(keep_vars=True)
    with torch.no_grad():
        for name in recipe.keep:
            if (value := kept.get(own_home(task, name))) is not None:
                state[name].copy_(torch.from_numpy(np.array(value)))
        for name, value in own.items():
            if tuple(value.shape) != allowed[name]:
                raise Refused(
                    f"tensor {name} of {task.submodel.name}: expected shape "
                    f"{allowed[name]}, found {tuple(value.shape)}"
                )
            # a copy: what was received may be read-only
            state[name].copy_(torch.from_numpy(np.array(value)))
    return net


def own_home(task: Task, name: str) -> str:
    """Where, in a device's memory, a tensor of its network lies that it keeps; each submodel that
    it ever had has its own.
    """
    return f"own/{task.submodel.plain.name}/{name}"


def mixed(task: Task) -> int:
    """A seed of the recipe's, the round and the agent, below 2^63 as torch wants it."""
    digest = hashlib.sha256(f"{task.recipe.seed}/{task.round}/{task.agent}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
