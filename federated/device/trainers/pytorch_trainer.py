"""Train, calibrate and evaluate with PyTorch, on a CPU or a CUDA GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from federated.device.trainers.reusable_networks import ReusableNetworks
from federated.device.trainers.trainer import Shapes, Start, TrainingResult
from federated.errors import ConfigError
from federated.methods.catalogue import find_loaded_hooks, find_loaded_method, list_loaded_hooks
from federated.settings_validation import validate
from federated.task import Recipe
from federated.trainer_capabilities import CAPABILITIES, name_hook
from federated.training import evaluation_passes
from federated.training.captured_step import CapturedSteps
from federated.training.hooks import Survey
from federated.training.score_sums import Tallies
from federated.training.training_inputs import Array, Examples, Execution, TrainingData, TrainingSet
from federated.training.training_loop import open_session, train, train_session
from federated.wire.messages import Run
from models.cost import cost
from models.families.catalogue import family
from models.random_state import isolate_random_state
from models.submodel import Submodel
from models.submodel_building import arrange_channels, build, shapes, statistics

__all__ = ["PyTorchTrainer"]

# the end of an error
UNKNOWN = "; a setting that a later version added needs that version: upgrade this agent"


class Cuda:
    """The memory of the CUDA device, which PyTorch initialises at the first use."""

    def free(self) -> int:
        return int(torch.cuda.mem_get_info()[0])

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        return int(torch.cuda.max_memory_allocated())

    def check(self) -> None:
        torch.cuda.synchronize()  # after some errors every use of the GPU fails


class PyTorchTrainer:
    """A trainer that supports every recipe and hook. device: "cpu" or "cuda".

    Raises ConfigError if PyTorch cannot use the device.
    """

    def __init__(self, device: str) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("--device cuda: PyTorch finds no CUDA device; use --device cpu")
        self.device = device
        self.runtime = f"torch {torch.__version__} {device}"
        self.accelerator = Cuda() if device == "cuda" else None
        self.captured = CapturedSteps() if device == "cuda" else None
        self._networks = ReusableNetworks()

    @cached_property
    def stream(self) -> torch.cuda.Stream | None:
        """A stream of the GPU for this trainer alone, so that trainers in several threads compute
        at the same time.
        """
        return torch.cuda.Stream() if self.device == "cuda" else None  # type: ignore[no-untyped-call]

    @property  # not cached, since the owner's methods may be loaded later
    def capabilities(self) -> frozenset[str]:
        able = (name for name, known in list_loaded_hooks().items() if known.train)
        return frozenset(CAPABILITIES) | frozenset(map(name_hook, able))

    def use_threads(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def shapes(self, submodel: Submodel) -> Shapes:
        return Shapes(shapes(submodel), statistics(submodel))

    @contextmanager
    def load(self, start: Start) -> Iterator[PyTorchNetwork]:
        try:
            # without a stream, the first does nothing
            with torch.cuda.stream(self.stream), self._provide_network(start) as (net, tensors):
                draws = isolate_random_state(start.seed, self.device)
                with draws if may_draw(start) else nullcontext():
                    yield PyTorchNetwork(net, start, self.device, self.captured, tensors)
        except torch.OutOfMemoryError as error:
            if self.captured is not None:
                self.captured.clear()
            raise MemoryError(str(error)) from error

    @contextmanager
    def _provide_network(
        self, start: Start
    ) -> Iterator[tuple[nn.Module, dict[str, Tensor] | None]]:
        """Provide a network on the device, with the weights of a task. Also provide its parameters
        and buffers by name, or None if training may replace them.
        """
        submodel, seed = start.submodel, start.recipe.seed
        if self.device == "cpu" and has_plain_hooks(start):
            with self._networks.borrow(submodel, seed) as (net, tensors):
                copy_weights(start.weights, tensors)
                yield net, tensors
            return
        cached = self.device == "cuda"
        net = deepcopy(build_once(submodel, seed)) if cached else build_arranged(submodel, seed)
        copy_weights(start.weights, net.state_dict())
        yield net.to(self.device), None

    def survey(self, run: Run, data: Examples, memory: int) -> dict[str, Any]:
        if run.network is None or not run.menu:
            return {}
        chosen = find_loaded_method(run.method)
        if chosen.hooks is None or chosen.hooks.survey is None:
            return {}
        where = f"card of run '{run.run}': {chosen.name}"
        settings = validate(chosen.record, run.settings, where, lambda key: UNKNOWN)
        return chosen.hooks.survey(
            Survey(
                run.network,
                run.menu,
                settings,
                data.x,
                data.y,
                data.labels,
                memory,
                torch.device(self.device),
            )
        )

    def training_memory(self, submodel: Submodel, batch: int) -> int:
        return cost(submodel, batch).memory

    def stepper(
        self, submodel: Submodel, x: Array, y: Array, labels: Sequence[int]
    ) -> Callable[[], object]:
        net = build_arranged(submodel).to(self.device)
        recipe, data = Recipe(batch=len(x)), TrainingSet(x, y, labels)

        def take_step() -> None:
            with torch.cuda.stream(self.stream):
                train(net, submodel, recipe, data, seed=0, captured=self.captured)

        return take_step


@dataclass(frozen=True)
class PyTorchNetwork:
    """A module with the weights that a task starts from, on a device. If the task may draw from
    PyTorch's global random generator, the generator stays seeded while the network is in use.

    captured: captured steps to train with; None: launch each operation of a step
    tensors: parameters and buffers of the module by name; None: training may replace them
    """

    net: nn.Module
    start: Start
    device: str
    captured: CapturedSteps | None = None
    tensors: Mapping[str, Tensor] | None = None

    def train(self, data: TrainingData, execution: Execution) -> TrainingResult:
        start, recipe = self.start, self.start.recipe
        session = open_session(self.net, start.submodel, recipe, data, seed=start.seed)
        session.round = start.round
        if recipe.hook or recipe.variate:
            session.received = to_tensors(start.received, self.device)
        session.memory = to_tensors(start.memory, self.device)
        loss = train_session(
            session,
            find_loaded_hooks(recipe.hook) if recipe.hook else None,
            on_step=execution.on_step,
            stop=execution.stop,
            captured=self.captured,
        )
        names = [*shapes(start.submodel)]
        names += statistics(start.submodel) if recipe.norm == "tracked" else []
        state = self.tensors if self.tensors is not None else self.net.state_dict()
        trained = {name: state[name] for name in dict.fromkeys((*names, *recipe.keep))}
        return TrainingResult(
            # copies, since calibration and further training write to the network's own tensors
            {name: copy_to_array(value) for name, value in trained.items()},
            loss,
            session.step,
            to_arrays(session.sent),
            to_arrays(session.memory),
            session.notes,
        )

    def calibrate(
        self, x: Array, stop: Callable[[], bool] | None = None
    ) -> tuple[dict[str, Array], int]:
        found, batches = evaluation_passes.calibrate(
            self.net, x, self.start.recipe.batch, self.start.seed, stop
        )
        return to_arrays(found), batches

    def evaluate(
        self, data: TrainingData, recipe: Recipe, stop: Callable[[], bool] | None = None
    ) -> Tallies:
        return evaluation_passes.evaluate(self.net, self.start.submodel, recipe, data, stop)


def may_draw(start: Start) -> bool:
    """Return True if a task may draw from PyTorch's global generators. A task that does not can run
    beside others in one process.
    """
    return family(start.submodel.network).draws or not has_plain_hooks(start)


def has_plain_hooks(start: Start) -> bool:
    """Return True if a task runs no code of a method, apart from another loss of the exits."""
    hook = start.recipe.hook
    return not hook or find_loaded_hooks(hook).plain


@lru_cache(maxsize=8)
def build_once(submodel: Submodel, seed: int) -> nn.Module:
    """Return an initial network, which callers must not change. Copying it is faster than drawing
    its weights.
    """
    return build_arranged(submodel, seed)


def build_arranged(submodel: Submodel, seed: int = 0) -> nn.Module:
    return arrange_channels(build(submodel, seed=seed), submodel)


def copy_weights(weights: Mapping[str, Array], tensors: Mapping[str, Tensor]) -> None:
    """Copy arrays into the tensors of a network on the CPU."""
    for name, value in weights.items():
        np.copyto(tensors[name].numpy(), value)


def copy_to_array(value: Tensor) -> Array:
    """Return a contiguous copy of a tensor."""
    if value.is_cuda:  # whose layout a GPU changes faster
        found: Array = value.contiguous().cpu().numpy()
        return found
    return np.array(value.numpy(), order="C")


def to_arrays(values: Mapping[str, Tensor]) -> dict[str, Array]:
    return {
        name: np.ascontiguousarray(value.detach().cpu().numpy()) for name, value in values.items()
    }


def to_tensors(values: Mapping[str, Array], device: str) -> dict[str, Tensor]:
    """Copy arrays, which may be read-only, to a device."""
    return {name: torch.from_numpy(np.array(value)).to(device) for name, value in values.items()}
