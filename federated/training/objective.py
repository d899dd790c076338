"""Prepare a batch, and compute its loss and scores, for each objective: classes, values and tokens.

A masked network reads a text in which each token is hidden with probability `Recipe.hide` (replaced
by the id after the vocabulary) and predicts all of them, hidden or not (HeteroFL, arXiv 2010.01264,
section 4; the authors' code). A causal one predicts the next token at each position.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.training.score_sums import fields
from models.submodel import Network

__all__ = [
    "flatten_places",
    "loss",
    "mark_labels",
    "mask_logits",
    "masked_loss",
    "prepare_batch",
    "standardise_values",
    "tally",
]


def prepare_batch(
    network: Network, hide: float, x: Tensor, y: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the inputs of the network and their truth, from raw examples and labels.

    hide: fraction of the tokens to hide
    """
    if network.objective == "masked":
        hidden = torch.rand(x.shape, generator=generator) < hide
        return x.masked_fill(hidden.to(x.device), network.outputs), x
    return x, standardise_values(network, y)


def standardise_values(network: Network, y: Tensor) -> Tensor:
    """Return values in raw units as the network learns them, and any other truth as it is."""
    if network.objective == "value" and network.shift:
        return (y - y.new_tensor(network.shift)) / y.new_tensor(network.scale)
    return y


def mark_labels(labels: Collection[int], outputs: int, device: torch.device | str) -> Tensor:
    """Return which classes are among `labels`: bool [outputs]."""
    held = torch.zeros(outputs, dtype=torch.bool)
    held[list(labels)] = True
    return held.to(device)


def mask_logits(logits: Tensor, held: Tensor) -> Tensor:
    """Return logits [N, classes, ...] with those of absent classes set to 0, not to minus infinity
    (HeteroFL, section 3; the authors' code). held: bool [classes].
    """
    return torch.where(held.reshape(-1, *[1] * (logits.dim() - 2)), logits, 0.0)


def loss(network: Network, out: Tensor, truth: Tensor) -> Tensor:
    """Return the mean over examples (and over tokens, or values) of the cross-entropy, or of the
    squared error of standardised values.
    """
    return (
        F.mse_loss(out, truth)
        if network.objective == "value"
        else F.cross_entropy(*flatten_places(out, truth))
    )


def masked_loss(network: Network, out: Tensor, truth: Tensor, held: Tensor | None) -> Tensor:
    """Return the loss; with `held`, the logits of all other classes are set to 0."""
    return loss(network, out if held is None else mask_logits(out, held), truth)


def flatten_places(out: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits [N, classes, ...] as [M, classes], and truth as [M]. Text is not copied if the
    network's last axis was the classes.
    """
    return out.movedim(1, -1).reshape(-1, out.shape[1]), truth.reshape(-1)


def tally(
    network: Network, out: Tensor, truth: Tensor, *, per_class: bool
) -> dict[str, list[float]]:
    """Return the sums of one batch, as `federated.training.score_sums` names them."""
    if network.objective == "value":
        errors = (out - truth).square()
        sums = {"errors": errors.sum(0), "sum": truth.sum(0), "squares": truth.square().sum(0)}
        return {
            "count": [float(len(truth))],
            "loss": [float(errors.mean(1).sum())],
            **{name: value.tolist() for name, value in sums.items()},
        }
    out, truth = flatten_places(out, truth)
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
