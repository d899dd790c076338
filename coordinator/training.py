"""The training of a round: how it begins, tasks out, updates in, each folded and written down so that a coordinator that dies goes on inside it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from coordinator import assignment, lessons
from coordinator.acceptance import check_training, expected
from coordinator.allotment import assign, choose, record
from coordinator.collection import Settled
from coordinator.config import Config
from coordinator.evaluation import ENDLESS
from coordinator.journal import Entry, Folded, Opened, Standstill
from coordinator.progress import timing
from coordinator.scores import of_training
from coordinator.store import Score
from coordinator.weights import Shipment, received
from federated.aggregate import Total, fold
from federated.method import State
from federated.task import Recipe, Task, Update
from models.submodel import Submodel

if TYPE_CHECKING:
    from coordinator.rounds import Run

__all__ = ["Begun", "begin", "folder", "resume", "train"]

log = logging.getLogger(__name__)

GRACE = 60.0  # least seconds of a round without a deadline


@dataclass(frozen=True)
class Begun:
    """A round that agents may hear of. state: with what is known of its fleet. size: largest acceptable encoding of a task's update, bytes.

    left: how an earlier coordinator left it, where one did.
    """

    opened: Opened
    state: State
    tasks: Sequence[Task]
    size: Callable[[Task], int]
    left: Standstill | None = None


def folder(round: int) -> str:
    """Where, below the spool, a round's updates lie."""
    return f"round-{round:06d}"


def begin(run: Run, state: State) -> Begun:
    """The next round, with the agents that are ready."""
    opened = planned(run, state)
    begun = tasked(run, state, opened)
    run.fleet.inbox.forget("round-*")  # of rounds that are over, or that began and were not written down
    if run.durable:
        run.store.journal.begin(replace(opened, digests=digests(begun.tasks)))
    return begun


def resume(run: Run, state: State, left: Standstill) -> Begun | None:
    """The next round, taken up where it was left: the same tasks, by the same weights.

    None where those cannot be made again, by another version of this program perhaps.
    """
    begun = tasked(run, state, left.opened)
    if digests(begun.tasks) != left.opened.digests:
        log.warning("round %d was under way with other weights than this program makes: it begins anew", left.opened.round)
        run.store.journal.drop(left.opened.round)
        return None
    log.info("going on inside round %d: %d of %d updates are in the last snapshot", left.opened.round, len(left.folded), len(begun.tasks))
    profiles = run.store.ledger.profiles()
    run.fleet.await_return({agent: profiles[agent] for agent in left.opened.chosen if agent in profiles})
    return replace(begun, left=left)


def tasked(run: Run, state: State, opened: Opened) -> Begun:
    """A round with its tasks, and the weights that they name on their way to the broker."""
    run.verdicts, run.standings = dict(opened.verdicts), {**run.standings, **opened.standings}
    run.assigned.update(opened.chosen)
    state = replace(state, agents=opened.surveys, fleet=dict(opened.fleet))
    shipment = Shipment(run.fleet, state, run.method)
    recipes = {submodel: asked(run.method.recipe(state, submodel), run.config) for submodel in set(opened.chosen.values())}
    made = [
        shipment.task(agent, "train", submodel, recipes[submodel], opened.limit, round=opened.round, run=run.config.name)
        for agent, submodel in opened.chosen.items()
    ]
    return Begun(opened, state, [replace(task, attempt=opened.attempt) for task in made], shipment.limit)


def digests(tasks: Sequence[Task]) -> dict[str, str]:
    """agent -> sha256 of the weights that it is sent."""
    return {task.agent: task.digest for task in tasks}


def planned(run: Run, state: State) -> Opened:
    """Who is to train what in the next round, of the agents that are ready."""
    number, agents = state.round + 1, run.fleet.ready()
    surveys = {a.name: dict(a.profile.survey) for a in agents if a.profile is not None}
    state = replace(state, agents=surveys)
    able = assign(run, state, agents, number)
    chosen = choose(run, state, able, number)
    record(run, number, chosen)
    counts = tuple((s, sum(c == s for c in able.values())) for s in dict.fromkeys(able.values()))
    verdicts = {agent: run.verdicts[agent] for agent in chosen}
    standings = {agent: run.standings[agent] for agent in chosen}
    return Opened(number, run.fleet.attempt, chosen, {}, counts, surveys, verdicts, standings, closing(run, chosen))


def train(run: Run, round: Begun) -> tuple[Total, list[Entry], list[Score]]:
    """Sends the tasks, folds the updates as they can be folded, and says what became of each; the devices' own scores where they were asked for."""
    left, opened = round.left, round.opened
    total = left.total if left is not None else Total()
    folded = {one.entry.agent: one for one in (left.folded if left is not None else ())}
    run.standings.update({agent: one.standing for agent, one in folded.items()})
    run.fleet.folded.update(dict.fromkeys(folded, opened.round))
    quorum = max(1, math.ceil(run.config.fleet.quorum * len(round.tasks) - 1e-9))
    spooled: list[Settled] = []
    for settled, update in run.fleet.collect(
        round.tasks,
        quorum=quorum,
        deadline=opened.limit,
        check=checker(run, round),
        size=round.size,
        folder=folder(opened.round),
        settled=None if left is None else left.settled,
    ):
        plan = run.method.place(round.state, update.submodel)
        with timing(run.watch, "fold"):
            fold(total, run.method.parts(round.state, plan, received(update)), (update.agent, update.attempt))
        folded[update.agent] = learned(run, settled, update, len(folded))
        run.standings[update.agent] = folded[update.agent].standing
        run.fleet.folded[update.agent] = opened.round
        run.watch.folded(folded[update.agent].entry)
        spooled.append(settled)
        if run.durable and run.config.journal.every and len(spooled) >= run.config.journal.every:
            keep(run, opened.round, total, list(folded.values()), spooled)
    settled_all = list(run.fleet.collection.entries.values())
    if run.durable:
        run.store.journal.close(opened.round, {s.task.agent: s.outcome for s in settled_all})
    missing = [s for s in settled_all if s.task.agent not in folded]
    for settled in missing:
        miss(run, settled)
    entries = [*(one.entry for one in folded.values()), *(Entry(s.task.agent, s.task.submodel.unowned.name, s.outcome) for s in missing)]
    scores = of_training([(one.submodel, one.entry.agent, one.tallies) for one in folded.values()])
    return total, sorted(entries, key=lambda e: e.agent), scores


def keep(run: Run, round: int, total: Total, folded: Sequence[Folded], spooled: list[Settled]) -> None:
    """A snapshot; the updates in it need not stay in the spool."""
    with timing(run.watch, "snapshot"):
        run.store.journal.snapshot(round, total, folded)
    for settled in spooled:
        if settled.update is not None:
            settled.update.unlink()
    spooled.clear()


def checker(run: Run, round: Begun) -> Callable[[Task, Update], None]:
    """What an update must be to be folded in this round."""
    plans = {task.submodel: run.method.place(round.state, task.submodel) for task in round.tasks}
    sent = {submodel: norms(run.method.dispatch(round.state, plan)) for submodel, plan in plans.items()}
    shapes = {submodel: expected(plan) for submodel, plan in plans.items()}

    def check(task: Task, update: Update) -> None:
        profile = run.fleet.agents[task.agent].profile
        examples = profile.data.examples if profile is not None else 0
        settled = run.fleet.collection.entries[task.agent, task.submodel.name]
        elapsed = math.inf if settled.resumed else run.fleet.clock() - settled.started
        check_training(update, shapes[task.submodel], sent[task.submodel], examples, assignment.planned(task.recipe, examples), elapsed)

    return check


def norms(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """L2 norm of each tensor."""
    return {name: float(value.double().norm()) for name, value in tensors.items()}


def learned(run: Run, settled: Settled, update: Update, position: int) -> Folded:
    """What is written of an update that was folded, and what it teaches of its agent."""
    agent, profile = update.agent, run.fleet.agents[update.agent].profile
    standing = run.standings[agent]
    if profile is not None and not settled.resumed:  # of what was under way before, this coordinator's clock says nothing
        standing = lessons.trained(standing, run.verdicts[agent], profile, settled, update)
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
    )
    return Folded(entry, update.submodel.plain, standing, dict(update.notes.get("tallies", {})))


def miss(run: Run, settled: Settled) -> None:
    """What a task without an update teaches of its agent."""
    agent = settled.task.agent
    # Simulated devices claim speeds: the seconds of this machine say nothing of them.
    known = run.patience < ENDLESS and not settled.resumed
    run.standings[agent] = lessons.missed(run.standings[agent], run.verdicts[agent], settled, run.fleet.clock() - settled.started if known else 0.0)


def closing(run: Run, chosen: Mapping[str, Submodel]) -> float:
    """Seconds after which a round closes: the configured deadline, or generously more than the slowest was predicted to need."""
    if run.config.fleet.deadline and run.patience < ENDLESS:
        return run.config.fleet.deadline
    return max(GRACE, run.patience * max(run.verdicts[agent].decision.seconds for agent in chosen))


def asked(recipe: Recipe, config: Config) -> Recipe:
    """The method's recipe with what the run adds: which scores devices take."""
    return replace(recipe, scores=config.evaluate.local, per_class=config.evaluate.per_class)
