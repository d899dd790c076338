"""Train with a step as a function of named tensors, and with PyTorch, on the same examples, draws
and corrections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from export.trainstep.given_draws import GivenDraws
from export.trainstep.named_tensor_function import GraphFunction
from export.trainstep.training_step import list_float_options, make_step
from federated.device.trainers.graph_names import (
    CORRECTION,
    DRAW,
    NEXT,
    OPTION,
    PARAMETER,
    START,
    STATISTIC,
)
from federated.device.trainers.graph_session import GraphSession, to_value
from federated.methods.catalogue import find_loaded_hooks
from federated.task import Recipe
from federated.training.hooks import Session
from federated.training.state_between_rounds import variate_name
from federated.training.training_inputs import TrainingSet
from federated.training.training_loop import batches, open_session, train_session
from models.submodel import Submodel
from models.submodel_building import build, example, statistics

__all__ = ["Outcome", "Trial", "open_graph", "train_with_pytorch", "train_with_step"]

Take = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Outcome:
    """The result of a training. losses: of all steps. tensors: parameters and statistics."""

    losses: list[float]
    tensors: dict[str, Tensor]

    def distance(self, other: Outcome) -> float:
        """Return the largest difference of a parameter from another result's, relative to the
        largest parameter.
        """
        shared = [name for name in self.tensors if name in other.tensors]
        largest = max(float(other.tensors[name].abs().max()) for name in shared)
        return (
            largest
            and max(
                float((self.tensors[name].double() - other.tensors[name].double()).abs().max())
                for name in shared
            )
            / largest
        )


@dataclass(frozen=True)
class Trial:
    """A training to compare. Each pass has a full batch, and one with an example less.

    submodel, recipe: what to train
    dtype: numbers of PyTorch's training
    layout: of the weights in memory, with PyTorch; that of the maps follows
    threads: of PyTorch
    """

    submodel: Submodel
    recipe: Recipe
    dtype: torch.dtype = torch.float64
    layout: torch.memory_format = torch.contiguous_format
    threads: int = 1

    @property
    def slots(self) -> int:
        """Batch of the graph: more than the recipe's."""
        return self.recipe.batch + 1

    def make_function(self) -> GraphFunction:
        """Return the step."""
        return make_step(self.submodel, self.recipe, self.slots)

    def draw_data(self) -> TrainingSet:
        """Return random examples of the network's form, of every other class. Inputs have the
        moments that the network expects: others would make all places of a map alike, and a batch
        norm of these magnifies rounding.
        """
        random, network = np.random.default_rng(0), self.submodel.network
        n = 2 * self.recipe.batch - 1
        if not example(network, 1).dtype.is_floating_point:
            text = random.integers(0, network.outputs, (n, *network.inputs))
            return TrainingSet(text, np.roll(text, -1, 1), range(network.outputs))
        channels = (-1, *[1] * (len(network.inputs) - 1))
        mean, std = (np.reshape(one, channels) for one in (network.mean, network.std))
        x = (mean + std * random.normal(size=(n, *network.inputs))).astype(np.float32)
        if network.objective == "value":
            y = random.normal(size=(n, network.outputs))
            return TrainingSet(
                x, y.astype(np.float64 if self.dtype == torch.float64 else np.float32)
            )
        labels = range(0, network.outputs, 2)
        return TrainingSet(x, random.choice(list(labels), n), labels)

    def build_network(self) -> nn.Module:
        """Return the network with random numbers, also in norms."""
        net, random = build(self.submodel, seed=1), torch.Generator().manual_seed(2)
        with torch.no_grad():
            for value in net.parameters():
                value.add_(torch.randn(value.shape, generator=random) / 20)
        net.to(self.dtype).to(memory_format=self.layout)  # type: ignore[call-overload]
        return net

    def open_session(self) -> Session:
        """Return a session with random variates."""
        made = open_session(
            self.build_network(), self.submodel, self.recipe, self.draw_data(), seed=3
        )
        random, received = torch.Generator().manual_seed(4), dict[str, Tensor]()
        for name, value in made.net.named_parameters():
            theirs, ours = torch.randn(2, *value.shape, generator=random).to(self.dtype) / 10
            received[f"c/{name}"] = theirs
            made.memory[variate_name(self.recipe, self.submodel, name)] = ours
        made.received = received
        return made

    def correct(self, session: Session, name: str) -> Tensor:
        """Return the correction of a parameter."""
        ours = session.memory[variate_name(self.recipe, self.submodel, name)]
        return session.received[f"c/{name}"] - ours if self.recipe.variate == "scaffold" else -ours

    def list_steps(self, session: Session) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the examples of all steps."""
        passes = chain(*(batches(session) for _ in range(self.recipe.epochs)))
        return (one for one, _ in zip(passes, range(session.steps), strict=False))

    def draw_masks(self, function: GraphFunction) -> list[list[Tensor]]:
        """Return the masks of all steps, for their own numbers of examples."""
        random = torch.Generator().manual_seed(5)
        return [
            [
                (torch.rand(len(x), *one.shape[1:], generator=random) < one.keep).to(self.dtype)
                for one in function.draws
            ]
            for x, _ in self.list_steps(self.open_session())
        ]


def train_with_pytorch(trial: Trial, function: GraphFunction) -> Outcome:
    """Train as a device with PyTorch does."""
    session, losses, hook = trial.open_session(), list[float](), trial.recipe.hook
    hooks = find_loaded_hooks(hook) if hook else None
    with GivenDraws(list(chain(*trial.draw_masks(function)))), use_threads(trial.threads):
        train_session(session, hooks, on_step=lambda done, planned, loss: losses.append(loss))
    return Outcome(losses, dict(session.net.state_dict()))


@contextmanager
def use_threads(threads: int) -> Iterator[None]:
    """Let PyTorch compute with this number of threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_with_step(trial: Trial, function: GraphFunction, take: Take) -> Outcome:
    """Train with a step. take: takes one."""
    session, recipe, network = trial.open_session(), trial.recipe, trial.submodel.network
    # the graph standardises values itself
    session.submodel = replace(trial.submodel, network=replace(network, shift=(), scale=()))
    given = {name: torch.zeros_like(value) for name, value in function.inputs.items()}
    for name, value in session.net.named_parameters():
        given[PARAMETER + name] = given[START + name] = value.detach()
        given[CORRECTION + name] = trial.correct(session, name)
    state = session.net.state_dict()
    given |= {STATISTIC + name: state[name] for name in statistics(trial.submodel)}
    given["classes"] = torch.zeros(network.outputs)
    given["classes"][list(session.labels)] = 1.0
    numbers = {key: getattr(recipe, key) for key in ("lr", "momentum", "decay", "pull", "clip")}
    numbers |= {OPTION + name: recipe.options[name] for name in list_float_options(recipe)}
    losses = []
    steps = zip(trial.list_steps(session), trial.draw_masks(function), strict=True)
    for t, ((x, y), masks) in enumerate(steps, 1):
        filling = trial.slots - len(x)
        given["x"], given["y"] = (
            torch.cat([one, one[:1].repeat_interleave(filling, 0)]) for one in (x, y)
        )
        given["weights"] = torch.tensor([1.0] * len(x) + [0.0] * filling)
        for i, mask in enumerate(masks):
            given[f"{DRAW}{i}"] = torch.cat([mask, mask.new_ones(filling, *mask.shape[1:])])
        for key, number in {**numbers, "c1": 1 - 0.9**t, "c2": 1 - 0.999**t}.items():
            given[key] = torch.tensor(number, dtype=torch.float64)
        asked = {
            name: given[name].to(trial.dtype if like.is_floating_point() else like.dtype)
            for name, like in function.inputs.items()
        }
        made = take(asked)
        losses.append(float(made["loss"]))
        given |= {name.removeprefix(NEXT): value for name, value in made.items() if name != "loss"}
    kept = {name: value for name, value in given.items() if name.startswith((PARAMETER, STATISTIC))}
    return Outcome(losses, {name.partition(".")[2]: value for name, value in kept.items()})


def open_graph(graph: bytes) -> Take:
    """Return a function that runs a graph."""
    session = GraphSession(graph)

    def take(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = session.run({name: to_value(value.numpy()) for name, value in given.items()})
        return {name: torch.from_numpy(value.numpy()) for name, value in found.items()}

    return take
