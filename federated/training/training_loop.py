"""Train a network on a device: follow a recipe, and call a method's hooks.

On a CPU with a fixed number of threads, equal weights, data, recipe and seed give the same bits.
The same is true on one GPU for the networks of `models`; custom networks may use operations that
add in any order there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from federated.task import Optimiser, Recipe
from federated.training import objective
from federated.training.hooks import Hooks, Session
from federated.training.step_corrections import Correction
from federated.training.training_inputs import (
    Array,
    Diverged,
    Step,
    Stopped,
    TrainingData,
    batch_bounds,
    check_examples,
)
from models.layers.batch_norm import set_norm
from models.layers.early_exits import run_exits
from models.submodel import Submodel

__all__ = [
    "batches",
    "descend",
    "open_session",
    "plain_loss",
    "shuffle",
    "to_device",
    "train",
]

torch.backends.cudnn.deterministic = True  # otherwise some GPU convolutions add in any order

OPTIMISERS: Mapping[Optimiser, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


def open_session(
    net: nn.Module, submodel: Submodel, recipe: Recipe, data: TrainingData, *, seed: int
) -> Session:
    """Return a session to train `net`, which is `submodel`. DataError: there are no examples."""
    check_examples(data.x, data.y)
    planned = recipe.epochs * len(batch_bounds(len(data.y), recipe.batch))
    steps = min(recipe.steps, planned) if recipe.steps else planned
    generator = torch.Generator().manual_seed(seed)
    parameters = [p for name, p in net.named_parameters() if name not in recipe.frozen]
    labels = tuple(data.labels)
    return Session(net, submodel, recipe, data.x, data.y, labels, generator, steps, parameters)


def train(
    net: nn.Module,
    submodel: Submodel,
    recipe: Recipe,
    data: TrainingData,
    *,
    seed: int,
) -> float:
    """Train in place, without hooks, on the device of `net`. Return as `descend` does. DataError:
    there are no examples. Diverged: the loss is not finite.
    """
    return descend(open_session(net, submodel, recipe, data, seed=seed))


def descend(
    session: Session,
    hooks: Hooks | None = None,
    *,
    on_step: Step | None = None,
    stop: Callable[[], bool] | None = None,
) -> float:
    """Take all steps of a session. Return the loss: its mean over the examples of the last pass.
    Stopped: `stop` returned True. Diverged: the loss is not finite.
    Hooks can raise anything.
    """
    hooks, recipe, session.stop = hooks or Hooks(""), session.recipe, stop
    set_norm(session.net, recipe.norm)
    session.net.train()
    if hooks.open is not None:
        hooks.open(session)
    correction, optimiser, loss = Correction.create(session), make_optimiser(session), 0.0
    while session.step < session.steps:
        summed, seen = 0.0, 0
        for x, truth in itertools.islice(batches(session), session.steps - session.step):
            if stop is not None and stop():
                raise Stopped
            optimiser.zero_grad(set_to_none=True)
            found = (
                plain_loss(session, x, truth)
                if hooks.loss is None
                else hooks.loss(session, x, truth)
            )
            found.backward()  # type: ignore[no-untyped-call]
            correction.add(session)
            if hooks.step is not None:
                hooks.step(session)
            if recipe.clip > 0:
                nn.utils.clip_grad_norm_(session.parameters, recipe.clip)
            optimiser.step()
            correction.move(session)
            session.step += 1
            value = float(found.detach())
            if not math.isfinite(value):
                raise Diverged(
                    f"the loss is {value} after {session.step} of {session.steps} steps: try a "
                    f"learning rate below {recipe.lr:g}"
                )
            summed, seen = summed + value * len(x), seen + len(x)
            if on_step is not None:
                on_step(session.step, session.steps, value)
        loss = summed / seen
    correction.close(session)
    if hooks.close is not None:
        hooks.close(session)
    return loss


def make_optimiser(session: Session) -> torch.optim.Optimizer:
    """Return the recipe's optimiser over the session's parameters, without state."""
    recipe = session.recipe
    made: Callable[..., torch.optim.Optimizer] = OPTIMISERS[recipe.optimiser]
    own = {"momentum": recipe.momentum} if recipe.optimiser == "sgd" else {}
    fused = session.device.type in {"cpu", "cuda"}
    return made(session.parameters, lr=recipe.lr, weight_decay=recipe.decay, fused=fused, **own)


def batches(session: Session) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one pass over the data in random order: the inputs of the network and their truth, on
    its device.
    """
    for chosen in shuffle(len(session.y), session.recipe.batch, session.generator):
        x, y = (
            to_device(session.x[chosen], session.device),
            to_device(session.y[chosen], session.device),
        )
        yield objective.prepare_batch(
            session.submodel.network, session.recipe.hide, x, y, session.generator
        )


def plain_loss(session: Session, x: Tensor, truth: Tensor) -> Tensor:
    """Return the recipe's own loss of a batch: the mean over exits, if there are several."""
    outs = run_exits(session.net, session.submodel, x)
    losses = [
        objective.masked_loss(
            session.submodel.network, out, truth, session.labels if session.recipe.masked else None
        )
        for out in outs
    ]
    return torch.stack(losses).mean() if len(losses) > 1 else losses[0]


def shuffle(examples: int, batch: int, generator: torch.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield one pass over the examples in random order, as indices batch by batch."""
    order: NDArray[np.int64] = torch.randperm(examples, generator=generator).numpy()
    return (order[start:end] for start, end in batch_bounds(examples, batch))


def to_device(values: Array, device: torch.device) -> Tensor:
    """Return values as a tensor on a device."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
