"""What the cards of the agents' data say: which network they make together, and whether one more fits it."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.config import Config
from federated.errors import ConfigError, Unknown
from federated.task import Card
from models.families import network as network_named
from models.submodel import Network

__all__ = ["misfit", "network_for", "pooled"]

OUTPUTS = {"class": "classes", "token": "tokens", "value": "values"}


def network_for(config: Config, cards: Sequence[Card]) -> Network:
    """The largest network for data of these cards: classes of the one that has most, mean and deviation pooled by examples.

    Raises ConfigError for data of several shapes, or that the model cannot take; Unknown for an unknown model.
    """
    shapes = sorted({card.inputs for card in cards})
    if len(shapes) > 1:
        raise ConfigError(f"the agents' examples are of different shapes: {', '.join(map(str, shapes))}")
    if len(targets := {card.target for card in cards}) > 1:
        raise ConfigError(f"the agents' data teach different things: {', '.join(sorted(targets))}")
    mean, std = pooled([(c.mean, c.std, c.examples) for c in cards])
    shift, scale = pooled([(c.shift, c.scale, c.examples) for c in cards])
    try:
        return network_named(config.model.name, shapes[0], max(card.outputs for card in cards), mean, std, cards[0].target, shift=shift, scale=scale)
    except LookupError as error:
        raise Unknown("model", str(error.args[0]), error.args[1]) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error


def pooled(moments: Sequence[tuple[Sequence[float], Sequence[float], int]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation per channel of all examples together, from each device's mean, deviation and count."""
    n = sum(count for *_, count in moments)
    mean = tuple(sum(m[i] * count for m, _, count in moments) / n for i in range(len(moments[0][0])))
    # Within devices plus between them: a difference of squares would lose the digits of a large mean.
    square = (sum((s[i] ** 2 + (m[i] - mean[i]) ** 2) * count for m, s, count in moments) / n for i in range(len(mean)))
    return mean, tuple(q**0.5 for q in square)


def misfit(card: Card, network: Network) -> str:
    """Why data do not fit a network; empty where they do."""
    wanted = "token" if network.objective in {"next", "masked"} else network.objective
    if card.target != wanted:
        return f"this run learns from data with a {wanted}, {card.name} has a {card.target}"
    if card.inputs != network.inputs:
        return f"this run learns from examples of shape {network.inputs}, {card.name} has {card.inputs}: join with data of that shape (--data)"
    if card.outputs > network.outputs or (wanted == "value" and card.outputs != network.outputs):
        return f"this run has {network.outputs} {OUTPUTS[wanted]}, {card.name} has {card.outputs}"
    return ""
