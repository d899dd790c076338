"""The training of a round: how it begins, tasks out, updates in, each folded and written down so that a coordinator that dies goes on inside it."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from coordinator.allotment import assign, choose, record
from coordinator.checks import checker, later
from coordinator.collection import CARRIED, Collection, Settled
from coordinator.config import Config
from coordinator.decisions import Verdict
from coordinator.evaluation import ENDLESS
from coordinator.journal import Asked, Entry, Folded, Opened, Standstill
from coordinator.leases import granted
from coordinator.observe.events import UpdateFolded, timing
from coordinator.openings import Openings
from coordinator.outcomes import learned, miss, unfolded
from coordinator.records import Score
from coordinator.scores import of_training
from coordinator.selection import wants
from coordinator.standing import Standing
from coordinator.weights import Shipment, received
from federated.aggregate import Total
from federated.errors import StoreError
from federated.kept import Kept
from federated.method import State
from federated.task import Recipe, Task
from models.families import shapes
from models.submodel import Submodel

if TYPE_CHECKING:
    from coordinator.rounds import Run

__all__ = ["Begun", "begin", "folder", "resume", "train"]

log = logging.getLogger(__name__)

GRACE = 60.0  # least seconds of a round without a deadline
MARGIN = 2**23  # bytes: twice what SQLite lets its log grow to


@dataclass(frozen=True)
class Begun:
    """A round that agents may hear of. state: with what is known of its fleet. size: largest acceptable encoding of a task's update, bytes.

    make: the task of an agent that is asked besides. left: how an earlier coordinator left it, where one did.
    """

    opened: Opened
    state: State
    tasks: Sequence[Task]
    size: Callable[[Task], int]
    make: Callable[[str, Submodel], Task]
    left: Standstill | None = None


def folder(round: int) -> str:
    """Where, below the spool, a round's updates lie."""
    return f"round-{round:06d}"


def begin(run: Run, state: State) -> Begun:
    """The next round, with the agents that are ready."""
    opened = planned(run, state)
    begun = tasked(run, state, opened)
    run.fleet.inbox.forget("round-*", keep=run.fleet.late)  # of rounds that are over, or that began and were not written down
    if run.durable:
        run.store.journal.begin(replace(opened, digests=digests(begun.tasks)))
    return begun


def resume(run: Run, state: State, left: Standstill) -> Begun | None:
    """The next round, taken up where it was left: the same tasks, by the same weights.

    None where those cannot be made again, by another version of this program perhaps.
    """
    begun = tasked(run, state, left.opened, left.asked)
    if digests(begun.tasks) != left.opened.digests | {one.agent: one.digest for one in left.asked}:
        log.warning("round %d was under way with other weights than this program makes: it begins anew", left.opened.round)
        run.store.journal.drop(left.opened.round)
        return None
    log.info("going on inside round %d: %d of %d updates are in the last snapshot", left.opened.round, len(left.folded), len(begun.tasks))
    profiles = run.store.ledger.profiles()
    run.fleet.await_return({task.agent: profiles[task.agent] for task in begun.tasks if task.agent in profiles})
    return replace(begun, left=left)


def tasked(run: Run, state: State, opened: Opened, besides: Sequence[Asked] = ()) -> Begun:
    """A round with its tasks, and the weights that they name on their way to the broker. besides: who was asked when it was under way."""
    run.verdicts, run.standings = dict(opened.verdicts), {**run.standings, **opened.standings}
    state = replace(state, agents=opened.surveys, fleet=dict(opened.fleet), holders=holders(run.trained, opened))
    shipment = Shipment(run.fleet, state, run.method)
    recipe = cache(lambda submodel: asked(run.method.recipe(state, submodel), run.config))
    rounds = 1 if run.past is None else 1 + run.past.staleness  # in which an update may come

    def make(agent: str, submodel: Submodel) -> Task:
        task = shipment.task(agent, "train", submodel, recipe(submodel), rounds * opened.limit, round=opened.round, run=run.config.name)
        return replace(task, attempt=opened.attempt, lease=lease(run, opened.verdicts[agent]))

    chosen = opened.chosen | {one.agent: one.submodel for one in besides}
    run.assigned.update(chosen)
    return Begun(opened, state, [make(agent, submodel) for agent, submodel in chosen.items()], shipment.limit, make)


def holders(trained: Mapping[str, Set[Submodel]], opened: Opened) -> Counter[tuple[Submodel, ...]]:
    """How many agents have each set of submodels (see `State.holders`). trained: by agent, in earlier rounds."""
    held = {agent: set(submodels) for agent, submodels in trained.items()}
    for agent, verdict in opened.verdicts.items():
        if verdict.submodel is not None:
            held.setdefault(agent, set()).add(verdict.submodel.plain)
    return Counter(tuple(sorted(submodels, key=lambda submodel: submodel.name)) for submodels in held.values())


def lease(run: Run, verdict: Verdict) -> float:
    """Seconds of a task's lease. Simulated devices claim speeds, and have none."""
    first = run.standings.get(verdict.decision.agent, Standing()).trained == 0
    return granted(verdict.decision.seconds, first=first) if run.patience < ENDLESS else 0.0


def take_up(run: Run) -> None:
    """Takes up the tasks of earlier rounds that were open when the last one was stored, if they can be made again by the same weights."""
    past = run.past
    if past is None or not run.durable:
        return
    kept, profiles = list[Task](), run.store.ledger.profiles()
    shipment = cache(lambda number: Shipment(run.fleet, past.state(number), run.method))
    check = later(run)
    for task in run.store.journal.carried():
        made = shipment(task.round - 1).task(task.agent, "train", task.submodel, task.recipe, task.deadline, round=task.round, run=task.run)
        if made.digest == task.digest:
            kept.append(task)
        else:
            log.warning("round %d of %s was under way with other weights than this program makes: it is dropped", task.round, task.agent)
    run.fleet.await_return({task.agent: profiles[task.agent] for task in kept if task.agent in profiles})
    run.fleet.reception.restore(kept, check, folder, shipment(0).limit)


def digests(tasks: Sequence[Task]) -> dict[str, str]:
    """agent -> sha256 of the weights that it is sent."""
    return {task.agent: task.digest for task in tasks}


def planned(run: Run, state: State) -> Opened:
    """Who is to train what in the next round, of the agents that are ready."""
    number, agents = state.round + 1, run.fleet.ready()
    surveys = {a.name: dict(a.profile.survey) for a in agents if a.profile is not None}
    state = replace(state, agents=surveys)
    able = assign(run, state, agents, number)
    busy = {entry.task.agent for entry in run.fleet.late.values() if entry.open}
    needed, wanted = wants(run.config.fleet, len(able))
    chosen = choose(run, state, able, number, wanted, busy)
    record(run, number, chosen, busy)
    counts = tuple((s, sum(c == s for c in able.values())) for s in dict.fromkeys(able.values()))
    verdicts = {agent: run.verdicts[agent] for agent in able}
    standings = {agent: run.standings[agent] for agent in able}
    limit = closing(run, chosen if run.past is None else able)
    if run.config.fleet.mode == "sync":
        needed, wanted = max(1, math.ceil(run.config.fleet.quorum * min(needed, len(chosen)) - 1e-9)), len(chosen)
    return Opened(number, run.fleet.attempt, chosen, {}, counts, surveys, verdicts, standings, limit, needed, wanted)


def train(run: Run, round: Begun) -> tuple[Total, list[Entry], list[Score]]:
    """Sends the tasks, folds the updates as they can be folded, and says what became of each; the devices' own scores where they were asked for.

    What was folded leaves the spool with every snapshot: each `journal.every` folds, and as soon as an update finds no room there.
    """
    left, opened = round.left, round.opened
    total = run.defences.begin(opened.round, opened.chosen.values()) or (left.total if left is not None else Total())
    folded = {(one.entry.agent, one.entry.task or opened.round): one for one in (left.folded if left is not None else ())}
    run.standings.update({agent: one.standing for (agent, _), one in folded.items()})
    run.fleet.folded.update(folded.keys())
    spooled: list[Settled] = []
    run.fleet.inbox.reserve = reserve(run, round.state)

    def snapshot() -> bool:
        if not run.durable or not spooled or isinstance(total, Kept):
            return False
        done = keep(run, opened.round, total, list(folded.values()), spooled)
        run.fleet.inbox.reserve = reserve(run, round.state)
        return done

    for settled, update in run.fleet.collect(
        round.tasks,
        quorum=opened.needed,
        deadline=opened.limit,
        check=checker(run, round.state),
        size=round.size,
        folder=folder(opened.round),
        settled=None if left is None else left.settled,
        more=Openings(run, opened, round.make, run.fleet.clock()) if left is None or left.closed is None else nobody,
        carry=carrying(run, opened.round),
        flowing=run.config.fleet.mode == "buffered" or not opened.chosen,
        waiting=run.config.journal.waiting,
        relieve=snapshot,
    ):
        plan = run.method.place(round.state, update.submodel)
        with timing(run.publish, "fold"):
            parts = run.method.parts(round.state, plan, received(update))
            run.defences.fold(total, round.state, update.submodel, parts, (update.agent, update.round))
        one = folded[update.agent, update.round] = learned(run, settled, update, len(folded))
        run.standings[update.agent] = one.standing
        run.fleet.folded[update.agent] = update.round
        run.publish(UpdateFolded(one.entry))
        spooled.append(settled)
        if not run.durable:
            release(spooled)  # nobody will fold it again
        elif run.config.journal.every and len(spooled) >= run.config.journal.every:
            snapshot()
    for one in folded.values():
        run.trained.setdefault(one.entry.agent, set()).add(one.submodel)
    run.defences.write()
    run.fleet.inbox.reserve = size_of(run, round.state)  # for the round's own weights
    settled_all, carried = list(run.fleet.collection.entries.values()), list(run.fleet.late.values())
    if run.durable:
        outcomes = {(s.task.agent, s.task.round): s.outcome for s in settled_all}
        run.store.journal.close(opened.round, outcomes | {(s.task.agent, s.task.round): CARRIED for s in carried})
    if carried:
        check = later(run)
        for settled in carried:
            settled.check = check
    missing = [s for s in settled_all if (s.task.agent, s.task.round) not in folded]
    late = [replace(s, outcome="late") for s in carried if s.task.round == opened.round and run.config.fleet.mode == "sync"]
    for settled in [*missing, *late]:
        miss(run, settled)
    entries = [*(one.entry for one in folded.values()), *(unfolded(s, opened.round) for s in missing)]
    scores = of_training([(one.submodel, one.entry.agent, one.tallies) for one in folded.values()])
    return run.defences.settled(total, round.state), sorted(entries, key=lambda e: e.agent), scores


def nobody(collection: Collection) -> Sequence[Task]:
    """Who is asked besides in a round that an earlier coordinator closed: it folds what that one did, and all others are at their own work."""
    return ()


def carrying(run: Run, round: int) -> Callable[[Settled], bool] | None:
    """Which tasks go on when a round closes: those whose updates would not be too old in the next; None where late updates do not count."""
    past = run.past
    return None if past is None else lambda settled: past.within(settled.task.round - 1, round)


def reserve(run: Run, state: State) -> int:
    """Bytes that no update of a round may take: for a snapshot of the total beside the one before, for weights that are evaluated, for rows."""
    menu = {submodel.plain: sum(math.prod(shape) for shape in shapes(submodel).values()) for submodel in run.menu}
    return max(0, 2 * size_of(run, state) + 4 * sum(menu.values()) + MARGIN - run.store.journal.size)


def size_of(run: Run, state: State) -> int:
    """Bytes of a state's tensors and of those that a round may add to them, in homes that nothing was folded into yet."""
    rows = (row for submodel in run.menu for row in run.method.place(state, submodel).rows)
    new = {row.home: 4 * math.prod(row.shape) for row in rows if row.home not in state.tensors}
    return sum(tensor.nbytes for tensor in state.tensors.values()) + sum(new.values())


def keep(run: Run, round: int, total: Total, folded: Sequence[Folded], spooled: list[Settled]) -> bool:
    """A snapshot; the updates in it need not stay in the spool. Where the disk does not take it (False), they do, and it is tried again."""
    try:
        run.defences.write()
        with timing(run.publish, "snapshot"):
            run.store.journal.snapshot(round, total, folded)
    except StoreError as error:
        log.error("%s", error)
        return False
    release(spooled)
    return True


def release(spooled: list[Settled]) -> None:
    """Removes updates from the spool that need not stay there."""
    for settled in spooled:
        if settled.update is not None:
            settled.update.unlink(missing_ok=True)
    spooled.clear()


def closing(run: Run, chosen: Mapping[str, Submodel]) -> float:
    """Seconds after which a round closes: the configured deadline, or generously more than the slowest was predicted to need."""
    if run.config.fleet.deadline and run.patience < ENDLESS:
        return run.config.fleet.deadline
    return max(GRACE, run.patience * max((run.verdicts[agent].decision.seconds for agent in chosen), default=0.0))


def asked(recipe: Recipe, config: Config) -> Recipe:
    """The method's recipe with what the run adds: which scores devices take."""
    return replace(recipe, scores=config.evaluate.local, per_class=config.evaluate.per_class)
