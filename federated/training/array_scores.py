"""Views and tallies of a network's outputs as numpy arrays, the same as those of
`federated.training.evaluation_passes` and `federated.training.objective`. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from federated.training.score_sums import fields
from federated.training.training_inputs import Array
from models.submodel import Network

__all__ = ["list_views", "tally"]


def list_views(outs: Sequence[Array], labels: Sequence[int]) -> dict[str, Array]:
    """Return the outputs [N, ...] of a network's exits by view."""
    views = {"all": outs[-1]}
    if len(outs) > 1:
        views["ensemble"] = np.mean(outs, 0)
        views |= {f"exit{i}": out for i, out in enumerate(outs)}
    if labels:
        held = np.zeros(outs[-1].shape[1], bool)
        held[list(labels)] = True
        shape = (-1, *[1] * (outs[-1].ndim - 2))
        views["labels"] = np.where(held.reshape(shape), outs[-1], np.float32(0))
    return views


def tally(network: Network, out: Array, truth: Array, *, per_class: bool) -> dict[str, list[float]]:
    """Return the sums of one batch, as `federated.training.score_sums` names them. truth: raw."""
    if network.objective == "value":
        return tally_values(network, out, truth)
    logits = np.moveaxis(out, 1, -1).reshape(-1, out.shape[1]).astype(np.float64)
    true = truth.reshape(-1)
    guess, most = logits.argmax(1), logits.max(1)
    log_sum = most + np.log(np.exp(logits - most[:, None]).sum(1))
    found = {
        "count": [float(len(true))],
        "loss": [float((log_sum - logits[np.arange(len(true)), true]).sum())],
        "right": [float((guess == true).sum())],
    }
    if "hits" in fields(network, per_class=per_class):
        groups: Mapping[str, Array] = {"hits": true[guess == true], "guessed": guess, "true": true}
        for name, values in groups.items():
            counts = np.bincount(values, minlength=network.outputs)
            found[name] = counts.astype(float).tolist()
    return found


def tally_values(network: Network, out: Array, truth: Array) -> dict[str, list[float]]:
    if network.shift:
        truth = (truth - np.asarray(network.shift)) / np.asarray(network.scale)
    errors, truth = (out.astype(np.float64) - truth) ** 2, truth.astype(np.float64)
    sums = {"errors": errors.sum(0), "sum": truth.sum(0), "squares": (truth**2).sum(0)}
    return {
        "count": [float(len(truth))],
        "loss": [float(errors.mean(1).sum())],
        **{name: value.tolist() for name, value in sums.items()},
    }
