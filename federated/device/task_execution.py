"""Perform a task: check the weights, restore the device's memory, train, calibrate or evaluate with
a trainer, and write the update. Torch-free.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from federated.device.agent_run_files import GRAPH
from federated.device.error_feedback import encode_trained
from federated.device.trainers.trainer import (
    LoadedNetwork,
    Shapes,
    Start,
    TensorShapes,
    Trainer,
    uses_graphs,
)
from federated.errors import Refused, describe_os_error
from federated.system.file_mapping import map_file
from federated.task import Task, Update, count_parts
from federated.trainer_capabilities import (
    GRAPHS,
    describe_missing,
    list_required_capabilities,
    name_hook,
)
from federated.training import state_between_rounds
from federated.training.score_sums import Tallies
from federated.training.state_between_rounds import Layer, list_state_names, variate_name
from federated.training.training_inputs import (
    UNWATCHED,
    Array,
    Examples,
    Execution,
    TrainingData,
    TrainingSet,
)
from federated.wire.codecs.weights import decode_weights

__all__ = ["carry_out", "perform"]

log = logging.getLogger(__name__)


def carry_out(
    trainer: Trainer,
    task: Task,
    weights: Path,
    result: Path,
    data: Examples,
    execution: Execution = UNWATCHED,
) -> float:
    """Perform a task with the encoded weights in a file, and the task's graphs beside it. Write the
    encoded update to `result` and the device's memory beside it. Return the loss, NaN if the task
    has none.

    Raises what `perform` raises, Unknown for a codec that is not installed, OSError.
    """
    if uses_graphs(trainer):
        trainer.use_graphs(
            {one.kind: weights.with_name(f"{one.digest}{GRAPH}") for one in task.graphs}
        )
    kept = result.parent / state_between_rounds.FOLDER
    known = state_between_rounds.read(kept, task.since, _list_corners(task, trainer))
    received = decode_weights(map_file(weights), task.weights_codec, task.decoded_size)
    update, memory = perform(trainer, task, received, data, known, execution)
    if task.work == "train":
        update = replace(update, notes={**update.notes, **execution.effort()})
    statistics = trainer.shapes(task.submodel).statistics
    encoded, residual = encode_trained(task, update, received, kept, statistics)
    store_memory(kept, task, memory, residual)
    with result.open("wb") as file:
        file.writelines(encoded)
    return float(update.notes.get("loss", math.nan))


def store_memory(
    folder: Path, task: Task, memory: Mapping[str, Array], residual: Mapping[str, Layer]
) -> None:
    """Store what a device keeps between rounds. residual: what only improves its later updates, and
    is left out if the disk has no room for it. Raises OSError.
    """
    if residual:
        try:
            state_between_rounds.write(folder, task.round, {**memory, **residual}, since=task.since)
            return
        except OSError as error:
            log.warning(
                "no error feedback in the next update: cannot store what the codec left out of "
                "this one: %s",
                describe_os_error(error),
            )
    if memory:
        state_between_rounds.write(folder, task.round, memory, since=task.since)


def perform(
    trainer: Trainer,
    task: Task,
    tensors: Mapping[str, Array],
    data: Examples,
    kept: Mapping[str, Array] | None = None,
    execution: Execution = UNWATCHED,
) -> tuple[Update, Mapping[str, Array]]:
    """Perform a task on received weights. Return the update, its tensors as contiguous numpy arrays
    by local name, and what the device is to keep.

    train: the new weights, and running statistics under tracked norm; notes loss, and if the recipe
        requires them, labels and the tallies "before" and "after".
    calibrate: running statistics of the weights as received; notes batches.
    evaluate: no tensors; notes tallies of the held-out examples, by view.
    kept: the device's memory of this run.
    Raises Refused if the tensors are not the submodel's or the trainer lacks what the recipe
    requires, DataError, Stopped, Diverged, MemoryError.
    """
    _check_recipe(trainer, task)
    kept, shapes = kept or {}, trainer.shapes(task.submodel)
    own = _choose_weights(task, tensors, kept, shapes)
    start = Start(task.submodel, task.recipe, own, _make_seed(task), task.round, tensors, kept)
    update = Update(
        task.run,
        task.round,
        task.attempt,
        task.agent,
        task.work,
        task.submodel,
        task.version,
        samples=len(data.y),
        steps=0,
    )
    with trainer.load(start) as network:
        if task.work == "train":
            return _train(network, task, update, data, shapes, execution)
        if task.work == "calibrate":
            found, batches = network.calibrate(data.x, execution.stop)
            return replace(update, tensors=found, notes={"batches": batches}), {}
        labels = data.labels if task.submodel.network.objective == "class" else ()
        held = TrainingSet(data.x_held, data.y_held, labels)
        tallies = network.evaluate(held, task.recipe, execution.stop)
        return replace(update, samples=len(data.y_held), notes={"tallies": tallies}), {}


def _train(
    network: LoadedNetwork,
    task: Task,
    update: Update,
    data: Examples,
    shapes: Shapes,
    execution: Execution,
) -> tuple[Update, Mapping[str, Array]]:
    """Train as the task's recipe says, with scores before and after if it requires them. Return the
    update with its results, and what the device is to keep.
    """
    recipe = task.recipe
    tallies = _name_tally("before", _score_own_data(network, task, data, shapes, execution))
    part = take_portion(data, recipe.portion, task.round)
    done = network.train(part, execution)
    tallies |= _name_tally("after", _score_own_data(network, task, data, shapes, execution))
    out = {name: value for name, value in done.tensors.items() if name not in recipe.keep}
    own = {_name_own(task, name): done.tensors[name] for name in recipe.keep}
    notes = {**done.notes, "loss": done.loss}
    if tallies:
        notes["tallies"] = tallies
    if recipe.labels:
        notes["labels"] = list(data.labels)
    sent = {**out, **done.sent}
    update = replace(update, samples=len(part.y), steps=done.steps, tensors=sent, notes=notes)
    return update, {**done.memory, **own}


def take_portion(data: Examples, portion: float, round: int) -> TrainingData:
    """Return the examples that a round trains on, at least one; see `Recipe.portion`. Their labels
    are those of all data.
    """
    if portion >= 1:
        return data
    parts, count = count_parts(portion), len(data.y)
    part = (round - 1) % parts
    start = min(part * count // parts, count - 1)
    chosen = slice(start, max(start + 1, (part + 1) * count // parts))
    return TrainingSet(data.x[chosen], data.y[chosen], data.labels)


def _score_own_data(
    network: LoadedNetwork, task: Task, data: Examples, shapes: Shapes, execution: Execution
) -> Tallies:
    """Return the network's tallies on the device's held-out examples, with static norms measured on
    the device's own data; empty unless the recipe requires them.
    """
    if not task.recipe.scores or not len(data.y_held):
        return {}
    if task.recipe.norm == "static" and shapes.statistics:
        network.calibrate(data.x, execution.stop)
    held = TrainingSet(data.x_held, data.y_held)
    return network.evaluate(held, task.recipe, execution.stop)


def _name_tally(when: str, tallies: Tallies) -> Tallies:
    """Return the tally of all answers under the name `when`."""
    return {when: tallies["all"]} if tallies else {}


def _check_recipe(trainer: Trainer, task: Task) -> None:
    """Raise Refused for a training that the trainer does not support."""
    if task.work != "train" or not (required := list_required_capabilities(task.recipe)):
        return
    supported = set(trainer.capabilities)
    if GRAPHS in supported:  # without its code, since it is in the graph
        supported.add(name_hook(task.recipe.hook))
    if lacking := describe_missing(required, supported):
        raise Refused(
            f"round {task.round}: the recipe requires {lacking}, which {trainer.runtime} lacks"
        )


def _list_corners(task: Task, trainer: Trainer) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the variates and the optimiser's state that a task needs from the
    device's memory, by their names there.
    """
    recipe, found = task.recipe, dict[str, tuple[int, ...]]()
    if task.work != "train" or not (recipe.variate or recipe.keep_optimiser):
        return found
    for name, shape in trainer.shapes(task.submodel).parameters.items():
        if recipe.variate:
            found[variate_name(recipe, task.submodel, name)] = shape
        if recipe.keep_optimiser:
            found |= dict.fromkeys(list_state_names(recipe, name).values(), shape)
    return found


def _list_required_tensors(task: Task, shapes: Shapes) -> TensorShapes:
    """Return the shapes of the tensors that a task must come with: parameters, and running
    statistics if they are part of the weights or are needed to evaluate.
    """
    with_statistics = task.work == "evaluate" or (
        task.work == "train" and task.recipe.norm == "tracked"
    )
    return {**shapes.parameters, **(shapes.statistics if with_statistics else {})}


def _choose_weights(
    task: Task, tensors: Mapping[str, Array], kept: Mapping[str, Array], shapes: Shapes
) -> dict[str, Array]:
    """Return the network's own tensors: those received, and those that the device keeps. A tensor
    to keep that the device does not have yet is missing.

    Raises Refused if the received tensors are not the submodel's.
    """
    recipe, allowed = task.recipe, {**shapes.parameters, **shapes.statistics}
    own = {name: value for name, value in tensors.items() if "/" not in name}
    wanted = _list_required_tensors(task, shapes).keys() - set(recipe.keep)
    foreign = {
        name for name in tensors.keys() - own.keys() if not recipe.hook and not recipe.variate
    }
    if odd := (wanted - own.keys()) | (own.keys() - allowed.keys()) | foreign:
        raise Refused(
            f"weights of {task.submodel.name} to {task.work}: missing or unexpected tensors: "
            f"{', '.join(sorted(odd)[:4])} ({len(odd)} in all)"
        )
    for name, value in own.items():
        if tuple(value.shape) != allowed[name]:
            raise Refused(
                f"tensor {name} of {task.submodel.name}: expected shape {allowed[name]}, found "
                f"{tuple(value.shape)}"
            )
    homes = {name: _name_own(task, name) for name in recipe.keep}
    return {name: kept[home] for name, home in homes.items() if home in kept} | own


def _name_own(task: Task, name: str) -> str:
    """Return the name, in a device's memory, of a tensor that the device keeps for a submodel."""
    return f"own/{task.submodel.plain.name}/{name}"


def _make_seed(task: Task) -> int:
    """Return a seed below 2^63 from the recipe's seed, the round and the agent."""
    digest = hashlib.sha256(f"{task.recipe.seed}/{task.round}/{task.agent}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
