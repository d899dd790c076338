"""What became of a training's tasks: what is written of each, and what it teaches of its agent."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from coordinator import lessons
from coordinator.collection import Settled
from coordinator.evaluation import ENDLESS
from coordinator.journal import Entry, Folded
from coordinator.standing import Standing
from federated.task import Update

if TYPE_CHECKING:
    from coordinator.rounds import Run

__all__ = ["learned", "miss", "unfolded"]


def learned(run: Run, settled: Settled, update: Update, position: int) -> Folded:
    """What is written of an update that was folded, and what it teaches of its agent."""
    agent, known = update.agent, run.fleet.agents.get(update.agent)
    standing, verdict = run.standings.get(agent, Standing()), run.verdicts.get(agent)
    late = settled.carried and run.config.fleet.mode == "sync"  # that was counted when its round closed
    if known is not None and known.profile is not None and verdict is not None and not settled.resumed and not late:
        # Of what was under way before it started, this coordinator's clock says nothing.
        standing = lessons.trained(standing, verdict, known.profile, settled, update)
    entry = Entry(
        agent,
        update.submodel.unowned.name,
        "folded",
        update.samples,
        update.steps,
        float(update.notes.get("loss", math.nan)),
        settled.seconds,
        lessons.number(update.notes, "step"),
        int(lessons.number(update.notes, "peak")),
        position,
        settled.digest,
        update.round if settled.carried else 0,
    )
    return Folded(entry, update.submodel.plain, standing, dict(update.notes.get("tallies", {})))


def miss(run: Run, settled: Settled) -> None:
    """What a task without an update teaches of its agent."""
    agent, verdict = settled.task.agent, run.verdicts.get(settled.task.agent)
    if verdict is None:
        return
    # Simulated devices claim speeds: the seconds of this machine say nothing of them.
    known = run.patience < ENDLESS and not settled.resumed
    run.standings[agent] = lessons.missed(run.standings[agent], verdict, settled, run.fleet.clock() - settled.started if known else 0.0)


def unfolded(settled: Settled, round: int) -> Entry:
    """What is written of a task that came to nothing in a round."""
    task = settled.task
    return Entry(task.agent, task.submodel.unowned.name, settled.outcome, task=task.round if task.round != round else 0)
