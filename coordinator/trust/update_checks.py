"""Check the updates of one agent against its task and its own description of its data. A gateway
applies these checks to its devices, as the coordinator does to its agents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from coordinator.assign.affordable_submodels import count_steps
from coordinator.round.round_state import Agent
from coordinator.round.tensor_check import Examined
from coordinator.trust.configured_defences import Defences
from coordinator.trust.message_checks import check_scores, check_statistics, check_training
from federated.errors import Refused
from federated.task import Card, Recipe, Task, Update
from models.submodel import Network

__all__ = ["accept_training", "check_report", "count_answers", "find_card", "limit_claims"]


def find_card(agents: Mapping[str, Agent], name: str) -> Card | None:
    """Return an agent's description of its data; None if it has sent none."""
    agent = agents.get(name)
    return agent.profile.data if agent is not None and agent.profile is not None else None


def accept_training(
    task: Task, examined: Examined, card: Card | None, elapsed: float, defences: Defences
) -> None:
    """Check a trained update whose tensors passed their own checks. Raises Refused. elapsed: see
    `Collector.check`.
    """
    check_report(task, examined.header, card, elapsed)
    defences.check(examined.header, examined.changes)


def check_report(task: Task, update: Update, card: Card | None, elapsed: float = math.inf) -> None:
    """Check what an update reports beside the tensors of a training. Raises Refused.

    card: the agent's description of its data; None: it has no examples.
    elapsed: see `Collector.check`.
    """
    examples = card.examples if card is not None else 0
    if task.work == "calibrate":
        check_statistics(update)
    elif task.work == "evaluate":
        check_scores(update)
    else:
        check_training(update, examples, count_steps(task.recipe, examples), elapsed)
    check_counts(update, examples, card.held_out if card is not None else 0)


def check_counts(update: Update, examples: int, held_out: int) -> None:
    """Check that an update counts no more examples than its agent has. Raises Refused."""
    most = held_out if update.work == "evaluate" else examples
    if update.samples > most:
        raise Refused(
            f"{update.work} of {update.agent}: expected at most the {most} examples of its "
            f"profile, found {update.samples}"
        )
    if update.work == "calibrate":
        return  # its other notes are neither checked nor read
    answers = held_out * count_answers(update.submodel.network)
    for view, tally in update.notes.get("tallies", {}).items():
        if tally["count"][0] > answers:
            raise Refused(
                f"{update.work} of {update.agent}: expected tally '{view}' of at most {answers} "
                f"examples, as its profile has them held out, found {tally['count'][0]:g}"
            )


def count_answers(network: Network) -> int:
    """Return how many answers a tally counts for one example: a text has one per token."""
    return math.prod(network.inputs) if network.objective in {"next", "masked"} else 1


def limit_claims(update: Update, recipe: Recipe, most: int) -> Update:
    """Return the update with at most this many examples (0: no limit), and with no more steps than
    its examples take.
    """
    samples = min(update.samples, most or update.samples)
    whole = replace(recipe, portion=1.0)  # an update counts only the examples of its portion
    steps = min(update.steps, count_steps(whole, samples))
    if (samples, steps) == (update.samples, update.steps):
        return update
    return replace(update, samples=samples, steps=steps)
