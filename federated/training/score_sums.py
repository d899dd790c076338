"""Keep scores as sums over examples, which add up across devices, and compute metrics from them;
torch-free.

A `Tally` maps names to lists of sums: `count` and `loss` always; `right` for classes and tokens;
per class `hits`, `guessed` and `true`; per value `errors` (squared), `sum` and `squares` of the
truth, both in standard deviations of the training data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from models.submodel import Network

__all__ = ["CLASSES", "Tallies", "Tally", "add", "fields", "metrics"]

Tally = Mapping[str, Sequence[float]]
Tallies = dict[str, dict[str, list[float]]]
"""Tallies of one device, by view."""

CLASSES = 1000  # most classes with sums per class; those of a vocabulary would outweigh the weights


def fields(network: Network, *, per_class: bool) -> dict[str, int]:
    """Return the length of each entry of a tally of this network, by name. per_class: include sums
    per class, for networks that have them.
    """
    if network.objective == "value":
        return {
            "count": 1,
            "loss": 1,
            **dict.fromkeys(("errors", "sum", "squares"), network.outputs),
        }
    per_class = per_class and network.objective == "class" and network.outputs <= CLASSES
    return {
        "count": 1,
        "loss": 1,
        "right": 1,
        **(dict.fromkeys(("hits", "guessed", "true"), network.outputs) if per_class else {}),
    }


def add(tallies: Iterable[Tally]) -> dict[str, list[float]]:
    """Return the sum of tallies of one network; empty for no tallies."""
    total: dict[str, list[float]] = {}
    for tally in tallies:
        for name, values in tally.items():
            total[name] = (
                [a + b for a, b in zip(total[name], values, strict=True)]
                if name in total
                else list(values)
            )
    return total


def metrics(tally: Tally, network: Network) -> dict[str, float]:
    """Return the metrics of a tally of at least one example.

    accuracy: fraction of right answers; for values R2, the explained fraction of the variance (mean
        over values)
    loss: per example
    macro_f1: for classes, mean F1 over the classes that occur or were guessed
    majority, majority_f1: accuracy and macro F1 of always guessing the most frequent class
    perplexity: for tokens, e^loss
    rmse: for values, root of the mean squared error, in raw units
    """
    count, loss = tally["count"][0], tally["loss"][0] / tally["count"][0]
    if network.objective == "value":
        return {"accuracy": r_squared(tally), "loss": loss, "rmse": rmse(tally, network)}
    found = {"accuracy": tally["right"][0] / count, "loss": loss}
    if network.objective in {"next", "masked"}:
        return {**found, "perplexity": math.exp(min(loss, 700.0))}
    return {**found, **(class_metrics(tally) if "hits" in tally else {})}


def class_metrics(tally: Tally) -> dict[str, float]:
    """Return the metrics that the counts per class give."""
    rows = [
        (h, g, t)
        for h, g, t in zip(tally["hits"], tally["guessed"], tally["true"], strict=True)
        if g + t
    ]
    count, most = tally["count"][0], max(tally["true"])
    held = sum(t > 0 for t in tally["true"])
    return {
        "macro_f1": sum(2 * h / (g + t) for h, g, t in rows) / len(rows),
        "majority": most / count,
        "majority_f1": 2 * most / (count + most) / held,
    }


def r_squared(tally: Tally) -> float:
    """Return R2; 0 for a value that never varies."""
    n = tally["count"][0]
    spread = [max(q - s * s / n, 0.0) for s, q in zip(tally["sum"], tally["squares"], strict=True)]
    return sum(
        1 - e / v if v > 1e-12 else 0.0 for e, v in zip(tally["errors"], spread, strict=True)
    ) / len(spread)


def rmse(tally: Tally, network: Network) -> float:
    """Return the root of the mean squared error, in raw units."""
    scale = network.scale or (1.0,) * network.outputs
    return math.sqrt(
        sum(e * s * s for e, s in zip(tally["errors"], scale, strict=True))
        / tally["count"][0]
        / network.outputs
    )
