"""The network of a run whose coordinator has no data: what more than half of the agents that are
ready agree on.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping

from coordinator.assign.data_cards import form, majority, network_for
from coordinator.fleet.fleet import Fleet
from coordinator.observe.events import AgentsAwaited, Publish
from coordinator.run.attendance import await_agents
from coordinator.settings.config import Config
from federated.errors import FleetError, brief
from federated.task import Card
from models.submodel import Network

__all__ = ["await_network"]

log = logging.getLogger(__name__)


def await_network(fleet: Fleet, config: Config, publish: Publish) -> Network:
    """The network for the data of the majority, as soon as that has `fleet.min_agents` agents. The
    others are judged by it like any latecomer.

    Without a majority it waits for more agents, since any choice between as many as many would
    believe a liar as readily as the others. Raises FleetError where none is found within
    `fleet.wait` seconds, ConfigError for data that the model cannot take.
    """
    start, wanted = time.monotonic(), config.fleet.min_agents
    cards, agreed = dict[str, Card](), dict[str, Card]()
    while len(agreed) < wanted:
        ready = await_agents(fleet, wanted, config.fleet.wait, publish)
        before, cards = (
            cards,
            {agent.name: agent.profile.data for agent in ready if agent.profile is not None},
        )
        if cards == before:
            if config.fleet.wait and time.monotonic() - start > config.fleet.wait:
                raise FleetError(
                    f"{disagreement(cards, agreed, wanted)}; name data at the "
                    "coordinator (--data) to settle it"
                )
            publish(AgentsAwaited(len(agreed), wanted))
            fleet.turn(0.2)
            continue
        agreed = majority(cards)
        if len(agreed) < wanted:
            log.warning("%s; the run waits for more agents", disagreement(cards, agreed, wanted))
    if left_out := sorted(cards.keys() - agreed.keys()):
        log.warning(
            "the data of %s do not fit those of the other %d agents and do not count: %s",
            ", ".join(left_out),
            len(agreed),
            described(cards, agreed),
        )
    return network_for(config, list(agreed.values()))


def disagreement(cards: Mapping[str, Card], agreed: Mapping[str, Card], wanted: int) -> str:
    return (
        f"{len(agreed)} of {len(cards)} agents have data that fit together, {wanted} are needed: "
        f"{described(cards, agreed)}"
    )


def described(cards: Mapping[str, Card], agreed: Mapping[str, Card]) -> str:
    """Which forms of data there are, how many agents have each, and the moments of those that count
    for nothing.
    """
    forms = Counter(form(card) for card in cards.values())
    counts = [
        f"{count} x {target} of {inputs}" + (f" with {outputs} outputs" if outputs else "")
        for (target, inputs, outputs), count in forms.items()
    ]
    odd = [
        f"{agent}: {card.outputs} outputs, mean {card.mean[:3]}, std {card.std[:3]}"
        for agent, card in cards.items()
        if agent not in agreed
    ]
    return brief("; ".join(counts + odd))
