"""What a method does on a device beyond its recipe, with PyTorch: functions that the training loop
calls, and what they are given.

Most methods need none: what a recipe can say, any trainer can follow. A hook is for what it cannot:
another loss, other parameters than the network's, a second network. A coordinator sends only the
name of the hooks and options: they run where this package, an installed one or the owner of the
device provides them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from federated.settings import Settings
from federated.task import Recipe
from models.submodel import Network, Submodel

__all__ = ["Hooks", "Session", "Survey"]


@dataclass
class Session:
    """One training on a device, as it goes on.

    net: the submodel's network with the received weights, in training mode. x, y: all raw examples;
    labels: the classes (or tokens) among them. round: of the coordinator. generator: the source of
    every random choice. received: all tensors that came, by local name; those that are not
        the network's own have a "/" in their name.
    memory: what this device kept from its earlier rounds of this run, by name; `close` may replace
    it, and it never leaves the device. parameters: what the optimiser moves, the network's unless
    `open` says otherwise. steps: how many there will be; step: taken so far. sent: tensors of the
    update beside (or, by name, in place of) the network's own. notes: plain values of the update.
    own: whatever the hooks of a method keep for each other.
    stop: says between two steps whether the work is no longer wanted.
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

    @property
    def device(self) -> torch.device:
        """Where the network lies."""
        return next(self.net.parameters()).device


@dataclass(frozen=True)
class Survey:
    """What a device is asked once, when it joins: to look at its data (and at the submodels of the
    run) before the first round.

    menu: the run's submodels, smallest first. memory: bytes that training may take. settings: the
    method's.
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
    """What a method does on a device. Each function may be left out.

    name: by which recipes refer to these hooks: that of the method that defines them.
    survey: plain values that go into the device's profile; the method's `assign`, and every
    function that is given a state, finds them. They may take the `survey_limit` of the run's card:
    a number of each class, and one of each submodel of the menu by its name.
    open: before the first step. loss: of a batch as it is posed, x [N, ...] and truth, the scalar
    that is minimised, instead of the mean over the network's exits of the recipe's own loss. step:
    after each backward pass, when gradients are there and nothing has moved. close: after the last
    step.
    """

    name: str
    survey: Callable[[Survey], dict[str, Any]] | None = None
    open: Callable[[Session], None] | None = None
    loss: Callable[[Session, Tensor, Tensor], Tensor] | None = None
    step: Callable[[Session], None] | None = None
    close: Callable[[Session], None] | None = None

    @property
    def train(self) -> bool:
        """Whether training needs them. A survey alone is left out where it cannot be made."""
        return any((self.open, self.loss, self.step, self.close))
