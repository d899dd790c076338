"""What the cards of the agents' data say: which network fits them, and whether one more agent's
data fit that network. Pure functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median_low

from coordinator.settings.config import Config
from federated.errors import ConfigError
from federated.runtime.plugins import unknown
from federated.task import Card
from models.families.catalogue import KIND
from models.families.catalogue import network as network_named
from models.submodel import Moments, Network

__all__ = ["AGENTS", "FAR", "form", "majority", "misfit", "network_for", "pooled", "strange"]

# as the name of the coordinator's data: it has none, and learns from the agents' cards what theirs
# are like
AGENTS = "agents"
OUTPUTS = {"class": "classes", "token": "tokens", "value": "values"}
# times the median: examples beyond it do not count, and a card with moments beyond it does not
# either
FAR = 10.0
STRANGE = 100.0  # deviations of the network from its mean: data so far away are in other units
CLASSES = 2  # times the median: a card of more classes does not count


# ---- what the agents agree on --------------------------------------------------------------------


def form(card: Card) -> tuple[str, tuple[int, ...], int]:
    """What cards must have in common to be of one network. Agents may know different numbers of
    classes, but not of values or tokens.
    """
    return card.target, card.inputs, 0 if card.target == "class" else card.outputs


def majority(cards: Mapping[str, Card]) -> dict[str, Card]:
    """The cards, by agent, that settle the network: alike in form, number of classes and moments.
    Empty unless they are more than half of all.

    Every limit is a median over agents, so that fewer than half of them cannot move it beyond what
    the others report.
    """
    if not cards:
        return {}
    ((common, _),) = Counter(map(form, cards.values())).most_common(1)
    alike = {agent: card for agent, card in cards.items() if form(card) == common}
    most = CLASSES * median_low(card.outputs for card in alike.values())
    odd = outliers({agent: (card.mean, card.std) for agent, card in alike.items()})
    odd |= outliers({agent: (card.shift, card.scale) for agent, card in alike.items()})
    found = {
        agent: card for agent, card in alike.items() if card.outputs <= most and agent not in odd
    }
    return found if 2 * len(found) > len(cards) else {}


def outliers(moments: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> set[str]:
    """The agents with a mean or deviation that is far from the median one, measured by the median
    deviation within and between agents.
    """
    found = set[str]()
    channels = len(next(iter(moments.values()))[0])
    for i in range(channels):
        middle = median_low(mean[i] for mean, _ in moments.values())
        spread = median_low(std[i] for _, std in moments.values()) + median_low(
            abs(mean[i] - middle) for mean, _ in moments.values()
        )
        found |= {
            agent
            for agent, (mean, std) in moments.items()
            if max(abs(mean[i] - middle), std[i]) > FAR * spread
        }
    return found


# ---- the network ---------------------------------------------------------------------------------


def network_for(config: Config, cards: Sequence[Card]) -> Network:
    """The largest network for data of these cards: classes of the one that has most, mean and
    deviation pooled by examples.

    No card counts for more than `FAR` times the median number of examples.
    Raises ConfigError for data of several shapes, or that the model cannot take; Unknown for an
    unknown model.
    """
    shapes = sorted({card.inputs for card in cards})
    if len(shapes) > 1:
        raise ConfigError(
            f"the agents' examples are of different shapes: {', '.join(map(str, shapes))}"
        )
    if len(targets := {card.target for card in cards}) > 1:
        raise ConfigError(f"the agents' data teach different things: {', '.join(sorted(targets))}")
    most = int(FAR) * median_low(card.examples for card in cards)
    mean, std = pooled([(c.mean, c.std, min(c.examples, most)) for c in cards])
    shift, scale = pooled([(c.shift, c.scale, min(c.examples, most)) for c in cards])
    try:
        return network_named(
            config.model.name,
            shapes[0],
            max(card.outputs for card in cards),
            Moments(mean, std, shift, scale),
            cards[0].target,
        )
    except LookupError as error:
        raise unknown(KIND, error) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error


def pooled(
    moments: Sequence[tuple[Sequence[float], Sequence[float], int]],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation per channel of all examples together, from each device's mean, deviation
    and count.
    """
    n = sum(count for *_, count in moments)
    mean = tuple(
        sum(m[i] * count for m, _, count in moments) / n for i in range(len(moments[0][0]))
    )
    # Within devices plus between them: a difference of squares would lose the digits of a large
    # mean.
    square = (
        sum((s[i] ** 2 + (m[i] - mean[i]) ** 2) * count for m, s, count in moments) / n
        for i in range(len(mean))
    )
    return mean, tuple(q**0.5 for q in square)


def misfit(card: Card, network: Network) -> str:
    """Why data do not fit a network; empty where they do."""
    wanted = "token" if network.objective in {"next", "masked"} else network.objective
    if card.target != wanted:
        return f"this run learns from data with a {wanted}, {card.name} has a {card.target}"
    if card.inputs != network.inputs:
        return (
            f"this run learns from examples of shape {network.inputs}, {card.name} has "
            f"{card.inputs}: join with data of that shape (--data)"
        )
    if card.outputs > network.outputs or (wanted == "value" and card.outputs != network.outputs):
        return f"this run has {network.outputs} {OUTPUTS[wanted]}, {card.name} has {card.outputs}"
    return ""


def strange(card: Card, network: Network) -> str:
    """Why data are in other units than those that a network was made for; empty where they are in
    the same.
    """
    for what, mean, std, network_mean, network_std in (
        ("channel", card.mean, card.std, network.mean, network.std),
        ("value", card.shift, card.scale, network.shift, network.scale),
    ):
        for i, (m, s, middle, spread) in enumerate(
            zip(mean, std, network_mean, network_std, strict=True)
        ):
            if max(abs(m - middle), s) > STRANGE * spread:
                return (
                    f"in this run {what} {i} has mean {middle:.4g} and deviation "
                    f"{spread:.4g}, in {card.name} {m:.4g} and {s:.4g}: "
                    "join with data in the same units"
                )
    return ""
