"""Train a network on a device: follow a recipe, and call a method's hooks.

On a CPU with a fixed number of threads, equal weights, data, recipe and seed give the same bits.
The same is true on one GPU for the networks of `models`. Other networks may use GPU operations that
add in a varying order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from federated.task import Recipe
from federated.training import objective
from federated.training.captured_step import CapturedSteps, can_capture
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
from federated.training.training_step import TrainingStep, list_trained
from models.layers.batch_norm import set_norm
from models.submodel import Submodel

__all__ = [
    "batches",
    "open_session",
    "shuffle",
    "to_device",
    "train",
    "train_session",
]

# otherwise the order of the additions in some convolutions varies
torch.backends.cudnn.deterministic = True


UNREAD = 64  # largest number of losses left on a GPU: reading one waits until its step is done


def open_session(
    net: nn.Module, submodel: Submodel, recipe: Recipe, data: TrainingData, *, seed: int
) -> Session:
    """Return a session to train `net`, which is `submodel`. DataError: there are no examples."""
    check_examples(data.x, data.y)
    planned = recipe.epochs * len(batch_bounds(len(data.y), recipe.batch))
    steps = min(recipe.steps, planned) if recipe.steps else planned
    generator = torch.Generator().manual_seed(seed)
    trained = list_trained(net, recipe)
    labels = tuple(data.labels)
    return Session(net, submodel, recipe, data.x, data.y, labels, generator, steps, trained)


def train(
    net: nn.Module,
    submodel: Submodel,
    recipe: Recipe,
    data: TrainingData,
    *,
    seed: int,
    captured: CapturedSteps | None = None,
) -> float:
    """Train in place, without hooks, on the device of `net`. Return the loss as `train_session`
    does. DataError: there are no examples. Diverged: the loss is not finite.
    """
    return train_session(open_session(net, submodel, recipe, data, seed=seed), captured=captured)


def train_session(
    session: Session,
    hooks: Hooks | None = None,
    *,
    on_step: Step | None = None,
    stop: Callable[[], bool] | None = None,
    captured: CapturedSteps | None = None,
) -> float:
    """Take all steps of a session. Return the loss: its mean over the examples of the last pass.
    Stopped: `stop` returned True. Diverged: the loss is not finite.
    Hooks can raise anything.

    captured: on a GPU, replay the captured step of an earlier training of the same kind, if all
        steps are the same computation
    """
    hooks, session.stop = hooks or Hooks(""), stop
    set_norm(session.net, session.recipe.norm)
    begin_training(session.net)
    if hooks.open is not None:
        hooks.open(session)
    step = TrainingStep.create(session, hooks, Correction.create(session))
    if captured is not None and can_capture(step):
        replayed = captured.open(step)
        loss = run_passes(session, replayed.take, on_step, stop)
        replayed.store(session)
    else:
        loss = run_passes(session, step.take, on_step, stop)
    step.store_state()
    step.correction.close(session)
    if hooks.close is not None:
        hooks.close(session)
    return loss


def begin_training(net: nn.Module) -> None:
    """Set the network to training mode, unless all of it already is, as after it was built: to set
    a small network again takes as long as some of its layers.
    """
    plain = nn.Module.train
    if not all(module.training and type(module).train is plain for module in net.modules()):
        net.train()


def run_passes(
    session: Session,
    take: Callable[[Tensor, Tensor], Tensor],
    on_step: Step | None,
    stop: Callable[[], bool] | None,
) -> float:
    """Take all steps, and return the mean loss of the last pass. Raises Stopped, Diverged."""
    most, mean = UNREAD if on_step is None and session.device.type == "cuda" else 1, 0.0
    while session.step < session.steps:
        summed, seen, unread = 0.0, 0, list[tuple[Tensor, int]]()
        passing = list(batch_bounds(len(session.y), session.recipe.batch))
        left = min(len(passing), session.steps - session.step)
        for x, truth in itertools.islice(batches(session), left):
            if stop is not None and stop():
                raise Stopped
            unread.append((take(x, truth), len(x)))
            session.step, left = session.step + 1, left - 1
            if left and len(unread) < most:
                continue
            for value, examples in read_losses(session, unread):
                summed, seen = summed + value * examples, seen + examples
                if on_step is not None:
                    on_step(session.step, session.steps, value)
            unread.clear()
        mean = summed / seen
    return mean


def read_losses(session: Session, unread: list[tuple[Tensor, int]]) -> list[tuple[float, int]]:
    """Return the losses of the last steps, each with its number of examples. Diverged: one is not
    finite.
    """
    values = torch.stack([loss for loss, _ in unread]).flatten().tolist()
    for step, value in enumerate(values, session.step - len(values) + 1):
        if not math.isfinite(value):
            raise Diverged(
                f"the loss is {value} after {step} of {session.steps} steps: try a learning rate "
                f"below {session.recipe.lr:g}"
            )
    return [(value, examples) for value, (_, examples) in zip(values, unread, strict=True)]


def batches(session: Session) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one pass over the data in random order: the inputs of the network and their truth, on
    its device.
    """
    network, recipe, generator = session.submodel.network, session.recipe, session.generator
    for raw, y in draw_examples(session):
        x = objective.augment(raw, recipe.augment, network.mean, generator)
        yield objective.prepare_batch(network, recipe.hide, x, y, generator)


def draw_examples(session: Session) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one pass over the raw examples and their labels in random order."""
    if session.resident is None:
        for chosen in shuffle(len(session.y), session.recipe.batch, session.generator):
            yield (
                to_device(session.x[chosen], session.device),
                to_device(session.y[chosen], session.device),
            )
        return
    order = torch.randperm(len(session.y), generator=session.generator).to(session.device)
    x, y = (values[order] for values in session.resident)
    for start, end in batch_bounds(len(order), session.recipe.batch):
        yield x[start:end], y[start:end]


def shuffle(examples: int, batch: int, generator: torch.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield one pass over the examples in random order, as indices batch by batch."""
    order: NDArray[np.int64] = torch.randperm(examples, generator=generator).numpy()
    return (order[start:end] for start, end in batch_bounds(examples, batch))


def to_device(values: Array, device: torch.device) -> Tensor:
    """Return values as a tensor on a device."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
