"""Find the network that fits most agents' data, and check one agent's data against a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import TypeVar

from coordinator.assign.claimed_count_limit import limit_counts
from coordinator.settings.config import Config
from federated.data.dataset import describe_examples
from federated.errors import ConfigError
from federated.runtime.extension_errors import explain_lookup
from federated.task import Card
from models.families.catalogue import POINT
from models.named_network import network as network_named
from models.submodel import Moments, Network

__all__ = [
    "build_network",
    "describe_form",
    "explain_unit_mismatch",
    "find_majority",
    "find_outliers",
    "pool_moments",
]

Name = TypeVar("Name", str, int)
MAX_SPREADS = 10.0  # times the median spread: limit of a card's moments
MAX_DEVIATIONS = 100.0  # of the network, from its mean: data beyond are in other units
MAX_CLASSES = 2  # times the median: limit of a card's classes


# ---- agreement between agents --------------------------------------------------------------------


def describe_form(card: Card) -> tuple[str, tuple[int, ...], str, int]:
    """Return what all cards of one network share: target, shape of inputs, tokens, and number of
    outputs. Agents may have different numbers of classes (returned as 0), but not of values or
    tokens.
    """
    outputs = 0 if card.target == "class" else card.outputs
    return card.target, card.inputs, describe_examples(card), outputs


def find_majority(cards: Mapping[str, Card]) -> dict[str, Card]:
    """Return the cards, by agent, that decide the network: similar in shape, number of classes and
    moments. Empty unless they are more than half of all cards.

    Every limit is a median over agents, so fewer than half of them cannot move it beyond what the
    others report.
    """
    if not cards:
        return {}
    ((common, _),) = Counter(map(describe_form, cards.values())).most_common(1)
    alike = {agent: card for agent, card in cards.items() if describe_form(card) == common}
    most = MAX_CLASSES * median_low(card.outputs for card in alike.values())
    odd = find_outliers({agent: (card.mean, card.std) for agent, card in alike.items()})
    odd |= find_outliers({agent: (card.shift, card.scale) for agent, card in alike.items()})
    found = {
        agent: card for agent, card in alike.items() if card.outputs <= most and agent not in odd
    }
    return found if 2 * len(found) > len(cards) else {}


def find_outliers(moments: Mapping[Name, tuple[Sequence[float], Sequence[float]]]) -> set[Name]:
    """Return the agents whose mean or deviation is far from the median. The unit of distance is the
    median deviation within agents plus that between agents.
    """
    found = set[Name]()
    channels = len(next(iter(moments.values()))[0])
    for i in range(channels):
        middle = median_low(mean[i] for mean, _ in moments.values())
        spread = median_low(std[i] for _, std in moments.values()) + median_low(
            abs(mean[i] - middle) for mean, _ in moments.values()
        )
        found |= {
            agent
            for agent, (mean, std) in moments.items()
            if max(abs(mean[i] - middle), std[i]) > MAX_SPREADS * spread
        }
    return found


# ---- the network ---------------------------------------------------------------------------------


def build_network(config: Config, cards: Sequence[Card]) -> Network:
    """Return the largest network for data of these cards. It has as many classes as the card with
    most; mean and deviation are pooled, weighted by examples.

    No card counts with more than ten times the median number of examples (see `limit_counts`).
    Raises ConfigError if the cards differ in shape, target or tokens, or if the model cannot take
    them; Unknown for an unknown model.
    """
    shapes = sorted({card.inputs for card in cards})
    if len(shapes) > 1:
        raise ConfigError(
            f"the agents' examples have different shapes: {', '.join(map(str, shapes))}"
        )
    if len(targets := {card.target for card in cards}) > 1:
        raise ConfigError(f"the agents' data have different targets: {', '.join(sorted(targets))}")
    if len(tokens := {describe_examples(card) for card in cards}) > 1:
        raise ConfigError(f"the agents' examples are different: {', '.join(sorted(tokens))}")
    most = limit_counts(card.examples for card in cards)
    mean, std = pool_moments([(c.mean, c.std, min(c.examples, most)) for c in cards])
    shift, scale = pool_moments([(c.shift, c.scale, min(c.examples, most)) for c in cards])
    with explain_lookup(POINT):
        return network_named(
            config.model.name,
            shapes[0],
            max(card.outputs for card in cards),
            Moments(mean, std, shift, scale, cards[0].vocabulary, cards[0].tokenizer),
            cards[0].target,
        )


def pool_moments(
    moments: Sequence[tuple[Sequence[float], Sequence[float], int]],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation per channel over all examples, from each device's mean, deviation
    and number of examples.
    """
    n = sum(count for *_, count in moments)
    mean = tuple(
        sum(m[i] * count for m, _, count in moments) / n for i in range(len(moments[0][0]))
    )
    # Variance within devices plus variance between them: a difference of squares would lose the
    # digits of a large mean.
    variance = (
        sum((s[i] ** 2 + (m[i] - mean[i]) ** 2) * count for m, s, count in moments) / n
        for i in range(len(mean))
    )
    return mean, tuple(v**0.5 for v in variance)


def explain_unit_mismatch(card: Card, network: Network) -> str:
    """Return why data seem to be in other units than the network's; empty if they do not."""
    for what, mean, std, network_mean, network_std in (
        ("channel", card.mean, card.std, network.mean, network.std),
        ("value", card.shift, card.scale, network.shift, network.scale),
    ):
        for i, (m, s, middle, spread) in enumerate(
            zip(mean, std, network_mean, network_std, strict=True)
        ):
            if max(abs(m - middle), s) > MAX_DEVIATIONS * spread:
                return (
                    f"{what} {i} has mean {middle:.4g} and deviation {spread:.4g} in this run, but "
                    f"{m:.4g} and {s:.4g} in {card.name}: join with data in the same units"
                )
    return ""
