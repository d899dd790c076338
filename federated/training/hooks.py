"""Hooks: functions of a method that the training loop calls on a device, with PyTorch.

Most methods need none, since any trainer can follow a recipe. Hooks are for what a recipe cannot
express: another loss, additional parameters, a second network. A coordinator sends only their name
and options. They run only if this package, an installed one or the owner of the device provides
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from federated.settings_validation import Settings
from federated.task import Recipe
from federated.training import objective
from models.submodel import Network, Submodel

__all__ = ["ExitLoss", "Hooks", "Session", "Survey"]

ExitLoss = Callable[[Sequence[Tensor], Sequence[Tensor], Mapping[str, Any]], Tensor]

RESIDENT = 1 << 28  # bytes of examples that lie on a GPU during a training


@dataclass
class Session:
    """One training on a device.

    net: the submodel's network with the received weights, in training mode
    submodel, recipe: of the task
    x, y: all raw examples
    labels: the classes (or tokens) among them
    generator: source of every random choice
    steps: planned number of steps
    parameters: parameters that the optimiser moves, by default the network's; `open` may change
        them
    round: of the coordinator
    step: steps taken so far
    received: all received tensors by local name; those that are not the network's have a "/" in it
    memory: tensors that this device kept from its earlier rounds of this run, by name; `close` may
        replace them; they are never sent
    sent: tensors of the update, in addition to the network's or, by name, in their place
    notes: plain values of the update
    own: state of the method's hooks
    stop: returns True if the work is no longer wanted
    """

    net: nn.Module
    submodel: Submodel
    recipe: Recipe
    x: NDArray[Any]
    y: NDArray[Any]
    labels: Sequence[int]
    generator: torch.Generator
    steps: int
    parameters: list[nn.Parameter]
    round: int = 0
    step: int = 0
    received: Mapping[str, Tensor] = field(default_factory=dict)
    memory: dict[str, Tensor] = field(default_factory=dict)
    sent: dict[str, Tensor] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    own: Any = None
    stop: Callable[[], bool] | None = None

    @cached_property
    def device(self) -> torch.device:
        """Device of the network."""
        return next(self.net.parameters()).device

    @cached_property
    def held(self) -> Tensor | None:
        """Which classes the device holds, bool [outputs] beside the network, if the loss is masked;
        else None.
        """
        if not self.recipe.masked:
            return None
        return objective.mark_labels(self.labels, self.submodel.network.outputs, self.device)

    @cached_property
    def resident(self) -> tuple[Tensor, Tensor] | None:
        """All examples and their labels on a GPU, if they fit well; else None."""
        if self.device.type != "cuda" or self.x.nbytes > RESIDENT:
            return None
        return torch.tensor(self.x, device=self.device), torch.tensor(self.y, device=self.device)


@dataclass(frozen=True)
class Survey:
    """Input of a survey, which a device runs once when it joins: its data and the run's submodels.

    network: the whole network
    menu: the run's submodels, smallest first
    settings: the method's
    x, y, labels: as in `Session`
    memory: bytes that training may use
    device: device to compute on
    """

    network: Network
    menu: tuple[Submodel, ...]
    settings: Settings
    x: NDArray[Any]
    y: NDArray[Any]
    labels: Sequence[int]
    memory: int
    device: torch.device


@dataclass(frozen=True)
class Hooks:
    """Functions of a method on a device, all optional.

    name: the value of `hook` in recipes, usually the name of the method that defines them; no other
        hooks may have it
    survey: returns plain values for the device's profile, which the method's `assign` and every
        function with a state can read. The run's card limits their size (`survey_limit`): one
        number per class, and one per submodel of the menu.
    open: called before the first step
    exit_loss: returns the loss of each example, [N], from the logits of every exit, each [N,
        classes, ...], the recipe's own loss of every exit, each [N], and the recipe's options.
        Every step is then the same computation: a GPU records it once and repeats it, and it can be
        exported as a training graph, in which float options are tensors
    loss: returns the scalar to minimise for a prepared batch, x [N, ...] and truth, instead of
        `exit_loss`; default: the mean over the network's exits of the recipe's own loss
    step: called after each backward pass, when gradients exist and no parameter has moved
    close: called after the last step
    """

    name: str
    survey: Callable[[Survey], dict[str, Any]] | None = None
    open: Callable[[Session], None] | None = None
    exit_loss: ExitLoss | None = None
    loss: Callable[[Session, Tensor, Tensor], Tensor] | None = None
    step: Callable[[Session], None] | None = None
    close: Callable[[Session], None] | None = None

    @property
    def train(self) -> bool:
        """True if training needs the hooks. A device that cannot run a survey skips it."""
        return self.exit_loss is not None or not self.plain

    @property
    def plain(self) -> bool:
        """True if training follows the recipe, apart from another loss of the exits. It then needs
        no code of the method if it runs as a graph.
        """
        return not any((self.open, self.loss, self.step, self.close))

    @property
    def repeats(self) -> bool:
        """True if all steps of a training are the same computation."""
        return not any((self.open, self.loss, self.step))
