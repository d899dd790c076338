"""What a device adds to each gradient from what it keeps between rounds: SCAFFOLD's variates and FedDyn's last gradient, which are one thing.

    gradient + pull * (w - w_0) + c - c_i

with w_0 the received weights and c_i of the device. After K steps of rate eta,

    scaffold:  c_i+ = c_i - c + (w_0 - w) / (K eta),  c received (Karimireddy et al., arXiv 1910.06378, Algorithm 1, option II)
    feddyn:    c_i+ = c_i + pull (w_0 - w),           c = 0    (Acar et al., arXiv 2111.04263, Algorithm 1; c_i is their gradient)

Of trainable parameters only. A device that gets another submodel keeps the common corner of its c_i, and zeros elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from federated.hooks import Session
from models.slicing import at, corner

__all__ = ["PREFIX", "Correction", "fitted"]

PREFIX = "c/"


@dataclass
class Correction:
    """What is added to the gradients of one training; nothing, where the recipe asks for nothing."""

    pull: float = 0.0
    start: Mapping[str, Tensor] = field(default_factory=dict)
    constant: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, session: Session) -> Correction:
        """From what a device received and kept. KeyError: SCAFFOLD without a received variate."""
        recipe = session.recipe
        if not recipe.pull and not recipe.variate:
            return cls()
        start = {name: p.detach().clone() for name, p in session.net.named_parameters()}
        if not recipe.variate:
            return cls(recipe.pull, start)
        ours = {name: fitted(session.memory.get(PREFIX + name), value) for name, value in start.items()}
        theirs = {name: session.received[PREFIX + name].to(value.device) for name, value in start.items()} if recipe.variate == "scaffold" else {}
        return cls(recipe.pull, start, {name: theirs[name] - value if theirs else -value for name, value in ours.items()})

    def add(self, session: Session) -> None:
        """To the gradients as they are after a backward pass."""
        if self.start:
            with torch.no_grad():
                for name, p in session.net.named_parameters():
                    if p.grad is not None:
                        p.grad.add_(p - self.start[name], alpha=self.pull)
                        if name in self.constant:
                            p.grad.add_(self.constant[name])

    def close(self, session: Session) -> None:
        """Keeps the new c_i, and has its change sent where it is a variate of the coordinator's."""
        if not self.constant:
            return
        scaffold = session.recipe.variate == "scaffold"
        rate = 1 / (session.step * session.recipe.lr) if scaffold else self.pull
        with torch.no_grad():
            for name, p in session.net.named_parameters():
                new = (self.start[name] - p) * rate - self.constant[name]
                if scaffold:
                    session.sent[PREFIX + name] = new - fitted(session.memory.get(PREFIX + name), p)
                session.memory[PREFIX + name] = new


def fitted(kept: Tensor | None, like: Tensor) -> Tensor:
    """What was kept, in another's shape: the common corner, zero elsewhere; zeros where there is nothing, or nothing of as many axes."""
    out = torch.zeros_like(like)
    if kept is not None and kept.dim() == like.dim():
        common = at(corner([min(a, b) for a, b in zip(kept.shape, like.shape, strict=True)]))
        out[common] = kept[common].to(out)
    return out
