"""Scores as sums over examples, so that those of devices add up; torch-free.

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
"""The tallies of one device, by view."""

CLASSES = 1000  # beyond so many, no sums per class: a vocabulary's would outweigh the weights


def fields(network: Network, *, per_class: bool) -> dict[str, int]:
    """Name and length of each entry of a tally of this network; per_class: with sums per class,
    where there are any.
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
    """The sum of tallies of one network; empty of none."""
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
    """What a tally of at least one example says.

    accuracy: share of right answers; of values, R2, the share of the variance that is explained
    (the mean over values). loss: per example. Of classes, macro_f1: mean F1 over the classes that
    occur or were guessed; majority and majority_f1: the same two of always guessing the most
    frequent class. Of tokens, perplexity: e^loss. Of values, rmse: root of the mean squared error,
    in raw units.
    """
    count, loss = tally["count"][0], tally["loss"][0] / tally["count"][0]
    if network.objective == "value":
        return {"accuracy": explained(tally), "loss": loss, "rmse": error(tally, network)}
    found = {"accuracy": tally["right"][0] / count, "loss": loss}
    if network.objective in {"next", "masked"}:
        return {**found, "perplexity": math.exp(min(loss, 700.0))}
    return {**found, **(by_class(tally) if "hits" in tally else {})}


def by_class(tally: Tally) -> dict[str, float]:
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


def explained(tally: Tally) -> float:
    """R2; 0 for a value that never varies."""
    n = tally["count"][0]
    spread = [max(q - s * s / n, 0.0) for s, q in zip(tally["sum"], tally["squares"], strict=True)]
    return sum(
        1 - e / v if v > 1e-12 else 0.0 for e, v in zip(tally["errors"], spread, strict=True)
    ) / len(spread)


def error(tally: Tally, network: Network) -> float:
    scale = network.scale or (1.0,) * network.outputs
    return math.sqrt(
        sum(e * s * s for e, s in zip(tally["errors"], scale, strict=True))
        / tally["count"][0]
        / network.outputs
    )
