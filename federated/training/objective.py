"""What a network learns, as arithmetic: how a batch is posed, what is lost, what is counted. One
place for classes, values and tokens.

A masked network reads a text in which each token is hidden with probability `Recipe.hide` (the id
after the vocabulary stands for it) and says all of them, hidden or not (HeteroFL, arXiv 2010.01264,
section 4; the authors' code). A causal one says at each place the next token.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.engine.tallies import fields
from models.submodel import Network, Submodel

__all__ = ["answers", "loss", "masked", "masked_loss", "pose", "tally"]


def pose(
    network: Network, hide: float, x: Tensor, y: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """What the network is shown and what it should say, of raw examples and what comes with them.
    hide: of tokens, the share to hide.
    """
    if network.objective == "masked":
        hidden = torch.rand(x.shape, generator=generator) < hide
        return x.masked_fill(hidden.to(x.device), network.outputs), x
    if network.objective == "value" and network.shift:
        return x, (y - y.new_tensor(network.shift)) / y.new_tensor(network.scale)
    return x, y


def answers(net: nn.Module, submodel: Submodel, x: Tensor) -> list[Tensor]:
    """What each exit says, the shallowest first; of a network without exits, the one answer."""
    exits = any(name.startswith("exits") for name in submodel.features)
    # a method, which Module's type forgets
    return net.exits(x) if exits else [net(x)]  # type: ignore[operator]


def masked(logits: Tensor, labels: Collection[int]) -> Tensor:
    """Logits [N, classes, ...] with those of absent classes set to 0, not to minus infinity
    (HeteroFL, section 3; the authors' code).
    """
    held = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
    held[list(labels)] = True
    return torch.where(held.reshape(-1, *[1] * (logits.dim() - 2)), logits, 0.0)


def loss(network: Network, out: Tensor, truth: Tensor) -> Tensor:
    """Mean over examples (and over tokens, or values): cross-entropy, or the squared error of
    standardised values.
    """
    return (
        F.mse_loss(out, truth)
        if network.objective == "value"
        else F.cross_entropy(*rows(out, truth))
    )


def masked_loss(
    network: Network, out: Tensor, truth: Tensor, labels: Collection[int] | None
) -> Tensor:
    """The loss, with the logits of classes that are not among `labels` set to 0, where labels are
    given.
    """
    return loss(network, out if labels is None else masked(out, labels), truth)


def rows(out: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [N, classes, ...] as [M, classes], and truth as [M]: of a text no copy is made, where
    the network's last axis was the classes.
    """
    return out.movedim(1, -1).reshape(-1, out.shape[1]), truth.reshape(-1)


def tally(
    network: Network, out: Tensor, truth: Tensor, *, per_class: bool
) -> dict[str, list[float]]:
    """The sums of one batch, as `federated.engine.tallies` names them."""
    if network.objective == "value":
        errors = (out - truth).square()
        sums = {"errors": errors.sum(0), "sum": truth.sum(0), "squares": truth.square().sum(0)}
        return {
            "count": [float(len(truth))],
            "loss": [float(errors.mean(1).sum())],
            **{name: value.tolist() for name, value in sums.items()},
        }
    out, truth = rows(out, truth)
    guess = out.argmax(1)
    found = {
        "count": [float(truth.numel())],
        "loss": [float(F.cross_entropy(out, truth, reduction="sum"))],
        "right": [float((guess == truth).sum())],
    }
    if "hits" in fields(network, per_class=per_class):
        for name, values in (("hits", truth[guess == truth]), ("guessed", guess), ("true", truth)):
            found[name] = torch.bincount(values, minlength=network.outputs).double().tolist()
    return found
