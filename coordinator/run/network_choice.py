"""Choose the network that fits most agents' data, for a run without data at the coordinator."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping

from coordinator.assign.majority_network import build_network, describe_form, find_majority
from coordinator.fleet.message_loop import MessageLoop
from coordinator.observe.events import AgentsAwaited, Publish
from coordinator.run.waiting_for_agents import POLL, wait_for_agents
from coordinator.settings.config import Config
from federated.errors import FleetError
from federated.safe_text import make_safe
from federated.task import Card
from models.submodel import Network

__all__ = ["wait_for_network"]

log = logging.getLogger(__name__)


def wait_for_network(fleet: MessageLoop, config: Config, publish: Publish) -> Network:
    """Return the network for the data of the majority, once it has `fleet.min_agents` agents. The
    other agents are judged by this network like any latecomer.

    Without a majority, wait for more agents: a choice between groups of the same size could follow
    a liar. Raises FleetError if there is no majority within `fleet.wait` seconds, ConfigError for
    data that do not fit the model.
    """
    start, wanted = time.monotonic(), config.fleet.min_agents
    cards, agreed = dict[str, Card](), dict[str, Card]()
    while len(agreed) < wanted:
        ready = wait_for_agents(fleet, wanted, config.fleet.wait, publish)
        before, cards = (
            cards,
            {agent.name: agent.profile.data for agent in ready if agent.profile is not None},
        )
        if cards == before:
            if config.fleet.wait and time.monotonic() - start > config.fleet.wait:
                raise FleetError(
                    f"{describe_disagreement(cards, agreed, wanted)}; give the coordinator its own "
                    "data"
                )
            publish(AgentsAwaited(len(agreed), wanted))
            fleet.turn(POLL)
            continue
        agreed = find_majority(cards)
        if len(agreed) < wanted:
            log.warning(
                "%s; the run waits for more agents", describe_disagreement(cards, agreed, wanted)
            )
    if left_out := sorted(cards.keys() - agreed.keys()):
        log.warning(
            "ignoring the data of %s, which do not fit those of the other %d agents: %s",
            ", ".join(left_out),
            len(agreed),
            describe_data(cards, agreed),
        )
    return build_network(config, list(agreed.values()))


def describe_disagreement(
    cards: Mapping[str, Card], agreed: Mapping[str, Card], wanted: int
) -> str:
    """Return what keeps agents from a majority."""
    return (
        f"{len(agreed)} of {len(cards)} agents have data that fit together, {wanted} are needed: "
        f"{describe_data(cards, agreed)}"
    )


def describe_data(cards: Mapping[str, Card], agreed: Mapping[str, Card]) -> str:
    """Return the forms of data, the number of agents with each, and the moments of the agents
    outside the majority.
    """
    forms = Counter(describe_form(card) for card in cards.values())
    counts = [
        f"{count} x {target} of {inputs}"
        + (f", {examples}" if examples != "numbers" else "")
        + (f" with {outputs} outputs" if outputs else "")
        for (target, inputs, examples, outputs), count in forms.items()
    ]
    odd = [
        f"{agent}: {card.outputs} outputs, mean {card.mean[:3]}, std {card.std[:3]}"
        for agent, card in cards.items()
        if agent not in agreed
    ]
    return make_safe("; ".join(counts + odd))
