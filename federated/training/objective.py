"""Prepare a batch, and compute its loss and scores, for each objective: classes, values and tokens.

A masked network reads a text in which each token is hidden with probability `Recipe.hide` (replaced
by the id after the vocabulary) and predicts all of them, hidden or not (HeteroFL, arXiv 2010.01264,
section 4; the authors' code). A causal one predicts the next token at each position.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from federated.task import Augmentation
from federated.training.score_sums import fields
from models.submodel import Network

__all__ = [
    "augment",
    "example_losses",
    "flatten_places",
    "loss",
    "mark_labels",
    "mask_logits",
    "masked_loss",
    "prepare_batch",
    "standardise_values",
    "tally",
]

BORDER = 8  # a crop moves an image by at most its size divided by this


def augment(
    x: Tensor, kinds: Collection[Augmentation], mean: Sequence[float], generator: torch.Generator
) -> Tensor:
    """Return raw images [n, channels, height, width] with random changes, drawn for each image.

    crop: shifted by up to an eighth of the height and the width, with zeros beyond the border
    flip: mirrored left to right, or not
    cutout: a square of half the height and the width, at a random centre, becomes the mean colour
        (DeVries and Taylor, arXiv 1708.04552)

    mean: of each channel, or one for all
    generator: on the CPU, so that every device draws the same
    """
    if "crop" in kinds:
        x = crop(x, generator)
    if "flip" in kinds:
        flipped = torch.rand(len(x), generator=generator) < 1 / 2
        x = torch.where(flipped.to(x.device).reshape(-1, 1, 1, 1), x.flip(-1), x)
    if "cutout" in kinds:
        rows, columns = (
            cut_out(len(x), size, generator).to(x.device) for size in (x.shape[2], x.shape[3])
        )
        hidden = rows[:, None, :, None] & columns[:, None, None, :]
        colour = torch.tensor(mean, dtype=torch.float64).to(x.device)
        colour = colour if x.is_floating_point() else colour.round()
        x = torch.where(hidden, colour.to(x.dtype).reshape(1, -1, 1, 1), x)
    return x


def crop(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return images that are shifted, each by other numbers of rows and columns."""
    n, _, height, width = x.shape
    most = height // BORDER, width // BORDER
    down, across = (
        torch.randint(2 * m + 1, (n, 1), generator=generator) + torch.arange(size)
        for m, size in zip(most, (height, width), strict=True)
    )
    padded = F.pad(x, (most[1], most[1], most[0], most[0]))
    images = torch.arange(n, device=x.device).reshape(-1, 1, 1)
    rows, columns = down.to(x.device)[:, :, None], across.to(x.device)[:, None, :]
    return padded.movedim(1, -1)[images, rows, columns].movedim(-1, 1).contiguous()


def cut_out(images: int, size: int, generator: torch.Generator) -> Tensor:
    """Return the places of an axis within half its size around a random centre: bool [images,
    size].
    """
    centre = torch.randint(size, (images, 1), generator=generator)
    place = torch.arange(size)
    return (place >= centre - size // 4) & (place < centre - size // 4 + size // 2)


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


def example_losses(network: Network, out: Tensor, truth: Tensor) -> Tensor:
    """Return the loss of each example: [N]."""
    if network.objective == "value":
        return (out - truth).square().mean(1)
    each = F.cross_entropy(*flatten_places(out, truth), reduction="none")
    return each.reshape(len(out), -1).mean(1)


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
