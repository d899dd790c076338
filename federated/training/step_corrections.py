"""Correct the steps of a device from its memory: SCAFFOLD's variates and FedDyn's last gradient, in
one form.

    gradient + pull * (w - w_0) + c - c_i

with w_0 the received weights and c_i of the device. FedDyn adds to the gradient; SCAFFOLD adds c -
c_i to the step, w - eta (d + c - c_i), as in NIID-Bench (arXiv 2102.02079). Under plain SGD both
are equal. Under momentum, Adam or clipping, c_i is the mean of the directions d taken, which is not
a gradient: added to one under a momentum of 0.9 it would be ten times too large, and diverge. After
K steps of rate eta,

    scaffold:  c_i+ = c_i - c + (w_0 - w) / (K eta),  c received
               (Karimireddy et al., arXiv 1910.06378, Algorithm 1, option II)
    feddyn:    c_i+ = c_i + pull (w_0 - w),           c = 0
               (Acar et al., arXiv 2111.04263, Algorithm 1; c_i is their gradient)

Only trainable parameters are corrected. A device keeps c_i for every coordinate that it ever
trained, initially 0 (`federated.training.state_between_rounds`). A round with another submodel
reads and replaces the c_i of that submodel's corner; the rest waits for a larger submodel. If the
devices of each submodel have a c of their own, a device keeps a c_i for each submodel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from federated.training.hooks import Session
from federated.training.state_between_rounds import PREFIX, variate_name

__all__ = ["Correction"]


@dataclass
class Correction:
    """Correction of one training; empty unless the recipe asks for one.

    pull: weight of w - w_0
    start: w_0 by name
    constant: c - c_i by name
    stepwise: True: add the constant to steps; False: to gradients
    """

    pull: float = 0.0
    start: Mapping[str, Tensor] = field(default_factory=dict)
    constant: Mapping[str, Tensor] = field(default_factory=dict)
    stepwise: bool = False

    @classmethod
    def create(cls, session: Session) -> Correction:
        """Return the correction from what a device received and kept. KeyError: SCAFFOLD without a
        received variate.
        """
        recipe = session.recipe
        if not recipe.pull and not recipe.variate:
            return cls()
        start = {name: p.detach().clone() for name, p in session.net.named_parameters()}
        if not recipe.variate:
            return cls(recipe.pull, start)
        ours = {name: read_variate(session, name, value) for name, value in start.items()}
        if recipe.variate == "feddyn":
            return cls(recipe.pull, start, {name: -value for name, value in ours.items()})
        theirs = {
            name: session.received[PREFIX + name].to(value.device) for name, value in start.items()
        }
        return cls(
            recipe.pull,
            start,
            {name: theirs[name] - value for name, value in ours.items()},
            stepwise=True,
        )

    def add(self, session: Session) -> None:
        """Correct the gradients after a backward pass."""
        with torch.no_grad():
            for name, p, grad in self.gradients(session):
                grad.add_(p - self.start[name], alpha=self.pull)
                if self.constant and not self.stepwise:
                    grad.add_(self.constant[name])

    def move(self, session: Session) -> None:
        """Correct the weights after the optimiser's step."""
        if self.stepwise:
            with torch.no_grad():
                for name, p, _ in self.gradients(session):
                    p.sub_(self.constant[name], alpha=session.recipe.lr)

    def gradients(self, session: Session) -> list[tuple[str, nn.Parameter, Tensor]]:
        """Return the corrected parameters that the last backward pass reached, with their
        gradients.
        """
        return (
            [(name, p, p.grad) for name, p in session.net.named_parameters() if p.grad is not None]
            if self.start
            else []
        )

    def close(self, session: Session) -> None:
        """Store the new c_i, and send its change if the coordinator has a variate."""
        if not self.constant:
            return
        scaffold = session.recipe.variate == "scaffold"
        rate = 1 / (session.step * session.recipe.lr) if scaffold else self.pull
        with torch.no_grad():
            for name, p in session.net.named_parameters():
                new = (self.start[name] - p) * rate - self.constant[name]
                if scaffold:
                    session.sent[PREFIX + name] = new - read_variate(session, name, p)
                session.memory[variate_name(session.recipe, session.submodel, name)] = new


def read_variate(session: Session, name: str, like: Tensor) -> Tensor:
    """Return the c_i of a parameter; zeros if the device never trained it."""
    known = session.memory.get(variate_name(session.recipe, session.submodel, name))
    return torch.zeros_like(like) if known is None else known
