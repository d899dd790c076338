"""Train, calibrate and evaluate a submodel with ONNX Runtime and the graphs of `export.trainstep`.
Torch-free, and without the network's code.

Follows a recipe as `federated.training.training_loop` does, with the draws of
`federated.training.portable_draws`.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from federated.device.trainers.graph_names import (
    CORRECTION,
    DRAW,
    NEXT,
    OPTION,
    OUT,
    PARAMETER,
    START,
    STATISTIC,
)
from federated.device.trainers.graph_session import GraphSession, Value, to_value
from federated.device.trainers.trainer import Start, TrainingResult
from federated.errors import Refused
from federated.task import Recipe
from federated.training.array_scores import list_views, tally
from federated.training.portable_draws import HIDDEN, MASK, Draws
from federated.training.score_sums import Tallies, add
from federated.training.state_between_rounds import PREFIX, variate_name
from federated.training.training_inputs import (
    Array,
    Diverged,
    Execution,
    Stopped,
    TrainingData,
    batch_bounds,
    check_examples,
)
from models.submodel import Network

__all__ = ["OnnxNetwork"]

BETAS = (0.9, 0.999)  # of Adam


@dataclass(frozen=True)
class OnnxNetwork:
    """A submodel with weights, as graphs.

    graphs: by kind: step, calibration, evaluation; those that the calls need
    weights: parameters and running statistics, by their names in the graphs
    """

    start: Start
    graphs: Mapping[str, GraphSession]
    weights: dict[str, Value] = field(default_factory=dict)

    @classmethod
    def load(cls, start: Start, graphs: Mapping[str, GraphSession]) -> OnnxNetwork:
        """Return the network of a start. KeyError: weights are missing."""
        names = {name for graph in graphs.values() for name in graph.inputs}
        kinds = (PARAMETER, STATISTIC)
        weights = {
            kind + name: to_value(np.asarray(value, np.float32))
            for name, value in start.weights.items()
            for kind in kinds
            if kind + name in names
        }
        return cls(start, graphs, weights)

    @property
    def network(self) -> Network:
        return self.start.submodel.network

    def train(self, data: TrainingData, execution: Execution) -> TrainingResult:
        check_examples(data.x, data.y)
        recipe, session = self.start.recipe, self._find("step")
        begun = self._begin(session, data)
        values, draws = dict(begun), Draws(self.start.seed)
        bounds = batch_bounds(len(data.y), recipe.batch)
        planned = recipe.epochs * len(bounds)
        steps, done, loss = min(recipe.steps, planned) if recipe.steps else planned, 0, 0.0
        for epoch in itertools.count():
            if done == steps:
                break
            order, summed, seen = draws.order(len(data.y), epoch), 0.0, 0
            for first, last in bounds[: steps - done]:
                if execution.stop is not None and execution.stop():
                    raise Stopped
                chosen = order[first:last]
                values |= self._make_step_inputs(session, data, chosen, done)
                for name, value in session.run(values).items():
                    values[name.removeprefix(NEXT)] = value
                found, done = float(values["loss"].numpy()), done + 1
                if not math.isfinite(found):
                    raise Diverged(
                        f"the loss is {found} after {done} of {steps} steps: try a learning rate "
                        f"below {recipe.lr:g}"
                    )
                summed, seen = summed + found * len(chosen), seen + len(chosen)
                if execution.on_step is not None:
                    execution.on_step(done, steps, found)
            loss = summed / seen
        self.weights.update({name: values[name] for name in self.weights})
        sent, memory = self._close(begun, done)
        return TrainingResult(self._read_tensors(), loss, done, sent, memory)

    def make_stepper(self, data: TrainingData) -> Callable[[], object]:
        """Return a function that takes one step on all the examples."""
        session = self._find("step")
        values, chosen = self._begin(session, data), np.arange(len(data.y))

        def step() -> None:
            values.update(self._make_step_inputs(session, data, chosen, 0))
            for name, value in session.run(values).items():
                values[name.removeprefix(NEXT)] = value

        return step

    def calibrate(
        self, x: Array, stop: Callable[[], bool] | None = None
    ) -> tuple[dict[str, Array], int]:
        check_examples(x, x)
        session, sums = self._find("calibration"), dict[str, Array]()
        order = Draws(self.start.seed).order(len(x), 0)
        bounds = batch_bounds(len(x), self.start.recipe.batch)
        for first, last in bounds:
            if stop is not None and stop():
                raise Stopped
            given = fill(session, {"x": x[order[first:last]]}, last - first)
            for name, value in session.run({**self.weights, **given}).items():
                sums[name] = sums.get(name, 0.0) + value.numpy().astype(np.float64)
        found = {name: (one / len(bounds)).astype(np.float32) for name, one in sums.items()}
        self.weights.update({name: to_value(value) for name, value in found.items()})
        return {name.removeprefix(STATISTIC): value for name, value in found.items()}, len(bounds)

    def evaluate(
        self, data: TrainingData, recipe: Recipe, stop: Callable[[], bool] | None = None
    ) -> Tallies:
        session, tallies = self._find("evaluation"), dict[str, list[dict[str, list[float]]]]()
        for start in range(0, len(data.y), recipe.batch):
            if stop is not None and stop():
                raise Stopped
            x, y = data.x[start : start + recipe.batch], data.y[start : start + recipe.batch]
            # every submodel and device hides the same tokens
            shown, truth = self._hide(x, y, recipe.hide, Draws(0), start)
            outs = session.run({**self.weights, **fill(session, {"x": shown}, len(x))})
            logits = [outs[f"{OUT}{i}"].numpy()[: len(x)] for i in range(len(outs))]
            for view, out in list_views(logits, data.labels).items():
                tallies.setdefault(view, []).append(
                    tally(self.network, out, truth, per_class=recipe.per_class)
                )
        return {view: add(each) for view, each in tallies.items()}

    def _find(self, kind: str) -> GraphSession:
        """Return a graph. Raises Refused if the task did not name it."""
        if kind not in self.graphs:
            raise Refused(f"the task for {self.start.submodel.name} names no graph of the {kind}")
        return self.graphs[kind]

    def _begin(self, session: GraphSession, data: TrainingData) -> dict[str, Value]:
        """Return the inputs of a first step, except its examples."""
        recipe, values = self.start.recipe, {**session.zeros(), **self.weights}
        for name in session.inputs:
            kind, _, local = name.partition(".")
            if name.startswith(START):
                values[name] = self.weights[PARAMETER + local]
            elif name.startswith(CORRECTION):
                values[name] = to_value(self._correct(local, values[name].numpy()))
            elif name.startswith(OPTION):
                values[name] = to_value(np.array(self._read_option(local), np.float32))
            elif kind in ("lr", "momentum", "decay", "pull", "clip"):
                values[name] = to_value(np.array(getattr(recipe, kind), np.float32))
        if "classes" in session.inputs:
            held = np.zeros(self.network.outputs, np.float32)
            held[list(data.labels)] = 1.0
            values["classes"] = to_value(held)
        return values

    def _read_option(self, name: str) -> float:
        """Return a number among the recipe's options. Raises Refused."""
        value = self.start.recipe.options.get(name)
        if not isinstance(value, float):
            raise Refused(f"the training graph reads the option '{name}', found {value!r} for it")
        return value

    def _make_step_inputs(
        self, session: GraphSession, data: TrainingData, chosen: Array, step: int
    ) -> dict[str, Value]:
        """Return the inputs that belong to one step, counted from 0."""
        draws = Draws(self.start.seed)
        x, y = data.x[chosen], data.y[chosen]
        shown, truth = self._hide(x, y, self.start.recipe.hide, draws, step)
        given = fill(session, {"x": shown, "y": truth}, len(chosen))
        shapes = json.loads(session.properties["draws"])
        for number, (shape, keep) in enumerate(shapes):
            mask = draws.below(keep, shape, MASK, step, number)
            given[f"{DRAW}{number}"] = to_value(mask.astype(np.float32))
        for name, beta in zip(("c1", "c2"), BETAS, strict=True):
            if name in session.inputs:
                given[name] = to_value(np.array(1 - beta ** (step + 1), np.float32))
        return given

    def _hide(
        self, x: Array, y: Array, fraction: float, draws: Draws, index: int
    ) -> tuple[Array, Array]:
        """Return the inputs of the network and their truth."""
        if self.network.objective != "masked":
            return x, y
        hidden = draws.below(fraction, x.shape, HIDDEN, index)
        return np.where(hidden, self.network.outputs, x), x

    def _correct(self, name: str, like: Array) -> Array:
        """Return the correction of a parameter (`federated.training.step_corrections`)."""
        ours = self._recall(name, like)
        if self.start.recipe.variate == "feddyn":
            return -ours
        return np.asarray(self.start.received[PREFIX + name] - ours, np.float32)

    def _recall(self, name: str, like: Array) -> Array:
        """Return the device's own variate of a parameter; zeros if it never trained it."""
        known = variate_name(self.start.recipe, self.start.submodel, name)
        return np.asarray(self.start.memory.get(known, np.zeros_like(like)), np.float32)

    def _close(
        self, begun: Mapping[str, Value], steps: int
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the change of the variates to send, and the memory with the new ones."""
        recipe, sent, memory = self.start.recipe, dict[str, Array](), dict(self.start.memory)
        scaffold = recipe.variate == "scaffold"
        rate = np.float32(1 / (steps * recipe.lr) if scaffold else recipe.pull)
        for key, value in begun.items():
            if not key.startswith(CORRECTION):
                continue
            name = key.removeprefix(CORRECTION)
            before, after = (one[PARAMETER + name].numpy() for one in (begun, self.weights))
            new = (before - after) * rate - value.numpy()
            if scaffold:
                sent[PREFIX + name] = new - self._recall(name, new)
            memory[variate_name(recipe, self.start.submodel, name)] = new
        return sent, memory

    def _read_tensors(self) -> dict[str, Array]:
        """Return the parameters, and the statistics if the recipe tracks them."""
        kinds = [PARAMETER] + ([STATISTIC] if self.start.recipe.norm == "tracked" else [])
        return {
            name.partition(".")[2]: np.array(value.numpy())
            for name, value in self.weights.items()
            if name.startswith(tuple(kinds))
        }


def fill(session: GraphSession, given: Mapping[str, Array], count: int) -> dict[str, Value]:
    """Return examples as inputs of a graph, filled up with copies of the first one, whose weight is
    0. Raises Refused if there are more examples than the graph takes.
    """
    slots = session.inputs["x"][0][0]
    if count > slots:
        raise Refused(f"expected a graph for {count} examples per step, found one for {slots}")
    found = {}
    for name, value in given.items():
        shape, dtype = session.inputs[name]
        whole = np.empty(shape, dtype)
        whole[:count], whole[count:] = value, value[0]
        found[name] = to_value(whole)
    if "weights" in session.inputs:
        found["weights"] = to_value((np.arange(slots) < count).astype(np.float32))
    return found
