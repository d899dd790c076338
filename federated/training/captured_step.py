"""Capture a training step as a CUDA graph, and replay it.

A step of a small batch consists of hundreds of short kernels. To launch them one by one takes
several times as long as to compute them; a graph launches all of them at once. A graph reads and
writes the memory that it was captured with. A captured training therefore has its own copy of the
network, which each training of the same submodel and recipe loads its weights into.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from federated.training.hooks import Session
from federated.training.training_step import TrainingStep, list_trained
from models.families.catalogue import FAMILIES

__all__ = ["CapturedSteps", "can_capture"]

KEPT = 16  # submodels and recipes whose captured trainings are kept
SHAPES = 64  # batch shapes of one training that are captured; others run without a graph
SPARE = 0.25  # fraction of the GPU's memory that captured trainings leave free
CAPTURING = threading.Lock()  # CUDA allows one capture at a time in a process


@dataclass(frozen=True)
class Capture:
    """The captured step of one batch shape.

    graph: its kernels
    x, truth: the batch that they read
    loss: the loss that they write
    """

    graph: torch.cuda.CUDAGraph
    x: Tensor
    truth: Tensor
    loss: Tensor


@dataclass(frozen=True)
class CapturedTraining:
    """A step on its own network, correction and optimiser, and its captures.

    step: the step that is captured
    pool: memory that all captures of one stream share, since they never run at the same time
    captures: by the shapes and types of the batch
    """

    step: TrainingStep
    pool: Any
    captures: dict[tuple[object, ...], Capture] = field(default_factory=dict)

    @classmethod
    def create(cls, like: TrainingStep, pool: Any) -> CapturedTraining:
        """Return a training that can load every training of the same submodel and recipe."""
        net = deepcopy(like.session.net)
        trained = list_trained(net, like.session.recipe)
        session = replace(like.session, net=net, parameters=trained, received={}, memory={})
        correction = replace(
            like.correction,
            start=copy_all(like.correction.start),
            constant=copy_all(like.correction.constant),
        )
        made = TrainingStep.create(session, like.hooks, correction)
        for p in session.parameters:
            p.grad = torch.zeros_like(p)
        made.optimiser.step()  # makes the optimiser's state; `load` replaces all values
        return cls(made, pool)

    def load(self, given: TrainingStep) -> None:
        """Start again from the weights, the correction and the labels of another training."""
        assign(list_values(self.step), list_values(given))
        for state in list_state(self.step.optimiser):
            state.zero_()
        for group, other in zip(
            self.step.optimiser.param_groups, given.optimiser.param_groups, strict=True
        ):
            group["lr"].copy_(other["lr"])

    def take(self, x: Tensor, truth: Tensor) -> Tensor:
        """Train on a prepared batch. Return its loss."""
        shape = (x.shape, x.dtype, truth.shape, truth.dtype)
        if shape not in self.captures:
            if len(self.captures) == SHAPES:
                return self.step.take(x, truth)
            self.captures[shape] = self.capture(x, truth)
        capture = self.captures[shape]
        capture.x.copy_(x)
        capture.truth.copy_(truth)
        capture.graph.replay()
        return capture.loss.clone()

    def capture(self, x: Tensor, truth: Tensor) -> Capture:
        """Capture a step on batches of this shape. The training's state does not change."""
        x, truth, optimiser = x.clone(), truth.clone(), self.step.optimiser
        state = [*list_values(self.step), *list_state(optimiser)]
        before, draws = [value.clone() for value in state], torch.cuda.get_rng_state(x.device)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(x.device)
        with CAPTURING:
            self.step.take(x, truth)  # libraries prepare themselves at the first step
            with torch.cuda.graph(graph, self.pool, stream, capture_error_mode="thread_local"):
                loss = self.step.take(x, truth)
        optimiser.zero_grad(set_to_none=True)  # other captures may use the memory
        assign(state, before)
        torch.cuda.set_rng_state(draws, x.device)
        return Capture(graph, x, truth, loss)

    def store(self, session: Session) -> None:
        """Copy the trained network to the session's."""
        assign(session.net.state_dict().values(), self.step.session.net.state_dict().values())


class CapturedSteps:
    """The captured trainings of one trainer, which uses one stream of a GPU at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], CapturedTraining] = OrderedDict()
        self._pool: Any | None = None

    def open(self, step: TrainingStep) -> CapturedTraining:
        """Return a captured training in the state of a training that has not begun."""
        key = make_key(step)
        if key not in self._kept:
            self._make_room()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._kept[key] = CapturedTraining.create(step, self._pool)
        self._kept.move_to_end(key)
        self._kept[key].load(step)
        return self._kept[key]

    def clear(self) -> None:
        """Free the memory of all captured trainings."""
        self._kept.clear()
        self._pool = None
        with CAPTURING:
            torch.cuda.empty_cache()

    def _make_room(self) -> None:
        """Drop those that were not used for the longest time."""
        while self._kept and (len(self._kept) >= KEPT or measure_free_memory() < SPARE):
            self._kept.popitem(last=False)


def can_capture(step: TrainingStep) -> bool:
    """Return True if the step is the same computation each time, with an optimiser that begins
    without state. A user's network may decide in Python what to compute.
    """
    if step.session.recipe.keep_optimiser or step.session.device.type != "cuda":
        return False
    return step.hooks.repeats and step.session.submodel.network.family in FAMILIES


def make_key(step: TrainingStep) -> tuple[object, ...]:
    """Return what a captured step depends on, besides what `CapturedTraining.load` replaces."""
    recipe = replace(step.session.recipe, epochs=0, steps=0, seed=0)
    if not step.correction.stepwise:  # which multiplies by the learning rate itself
        recipe = replace(recipe, lr=0.0)
    return step.session.submodel, step.hooks.name, repr(recipe)


def list_values(step: TrainingStep) -> list[Tensor]:
    """Return the tensors of a training that its steps read or change, without the optimiser's."""
    session, correction = step.session, step.correction
    held = [] if session.held is None else [session.held]
    state = session.net.state_dict().values()
    return [*state, *correction.start.values(), *correction.constant.values(), *held]


def list_state(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors of the optimiser's state."""
    found = (value for state in optimiser.state.values() for value in state.values())
    return [value for value in found if isinstance(value, Tensor)]


def copy_all(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in tensors.items()}


def assign(targets: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)


def measure_free_memory() -> float:
    """Return the free fraction of the GPU's memory."""
    free, total = torch.cuda.mem_get_info()
    return (free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()) / total
