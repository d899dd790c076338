"""The training of a round: tasks go out, updates come in, and each is folded and recorded."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from immutables import Map

from coordinator.assign.selection import generator
from coordinator.assign.standing import Standing
from coordinator.fleet.shipment import Shipment, to_torch
from coordinator.observe.events import UpdateFolded, timing
from coordinator.observe.records import Entry, Folded, Score
from coordinator.observe.score_summary import of_training
from coordinator.phases.context import RunContext
from coordinator.phases.fleet_history import (
    FleetHistory,
    record_counts,
    record_fold,
    record_standings,
    record_tasks,
)
from coordinator.phases.late_updates import LateUpdates, check_update
from coordinator.phases.outcomes import (
    describe_fold,
    describe_miss,
    learn_from_miss,
    learn_from_update,
)
from coordinator.round.collector import Snapshot
from coordinator.round.plan import RoundPlan
from coordinator.round.round_events import PhaseBegan
from coordinator.round.task_state import Planned, Spare, TaskState
from coordinator.settings.config import Config
from federated.engine.aggregate import Total
from federated.engine.kept_parts import Kept
from federated.method import State
from federated.task import Recipe, Task, Update
from models.families.catalogue import shapes
from models.submodel import Submodel

__all__ = ["Trained", "Training", "complete_recipe", "train"]

log = logging.getLogger(__name__)

MARGIN = 2**23  # bytes: twice what SQLite lets its log grow to


@dataclass(frozen=True)
class Trained:
    """What a training brought.

    total: what was folded, as a sum whose mean is what the run's rule makes of it.
    entries: what became of each task, by agent.
    scores: of the devices before and after they trained, where they were asked for them.
    history: what the rounds have shown of the fleet, this training included.
    """

    total: Total
    entries: Sequence[Entry]
    scores: Sequence[Score]
    history: FleetHistory


class Training:
    """A training that is under way: makes its tasks, and checks and folds its updates (see
    `Collector`).

    plan: who trains what.
    state: the one that the round starts from, with what is known of its fleet.
    shipment: the weights of that state on their way to the agents.
    history: what the rounds have shown of the fleet, with what this training folded so far.
    total: the sum so far.
    folded: (agent, round of its task) -> its update that was folded.
    """

    def __init__(
        self, run: RunContext, state: State, history: FleetHistory, plan: RoundPlan
    ) -> None:
        # of late updates that came since the last round, so that bounds do not depend on when this
        # process started
        run.defences.write()
        self.run, self.plan = run, plan
        self.state = replace(
            state,
            agents=plan.surveys,
            fleet=dict(plan.fleet),
            holders=count_holders(history.trained, plan),
        )
        self.shipment = Shipment(run.fleet, self.state, run.method)
        self.history = record_standings(history, plan.standings)
        self.total: Total | Kept = run.defences.begin(plan.round, plan.chosen.values()) or Total()
        self.folded: dict[tuple[str, int], Folded] = {}
        self._recipe = cache(
            lambda submodel: complete_recipe(run.method.recipe(self.state, submodel), run.config)
        )
        self._late = LateUpdates(run)

    def restore(self, total: Total, folded: Sequence[Folded]) -> None:
        """Go on from a snapshot."""
        self.total = total
        for one in folded:
            self._record(one, one.entry.task or self.plan.round)

    def make_task(self, agent: str, submodel: Submodel) -> Planned:
        """The task of an agent. Publishes its weights if no other agent got them yet."""
        run, plan = self.run, self.plan
        rounds = 1 if run.past is None else 1 + run.past.staleness  # in which an update may come
        task = self.shipment.task(
            agent, submodel, self._recipe(submodel), rounds * plan.limit, round=plan.round
        )
        task = replace(task, attempt=plan.attempt, since=self.history.folded.get(agent, 0))
        return Planned(task, plan.verdicts[agent].decision.seconds)

    def make_phase(self) -> PhaseBegan:
        """The event that begins the phase, with all its tasks."""
        run, plan = self.run, self.plan
        return PhaseBegan(
            run.fleet.clock(),
            "train",
            plan.round,
            tuple(self.make_task(agent, submodel) for agent, submodel in plan.chosen.items()),
            plan.limit,
            plan.needed,
            wanted=plan.wanted,
            spares=self._spares(),
            flowing=run.config.fleet.mode == "buffered" or not plan.chosen,
            carries=run.past is not None,
            timed=run.measures_time and run.past is None,
        )

    def reserve_room(self) -> None:
        """Keep room on the disk that no update may take, for what the coordinator itself is going
        to write.
        """
        self.run.fleet.inbox.reserve = measure_reserve(self.run, self.state)

    def _spares(self) -> tuple[Spare, ...]:
        """The agents that can train and were not asked, in an order that is drawn."""
        seconds = {
            agent: verdict.decision.seconds for agent, verdict in sorted(self.plan.verdicts.items())
        }
        drawn = (
            generator(self.run.config.seed, 4, self.plan.round).permutation(list(seconds)).tolist()
        )
        return tuple(
            Spare(agent, seconds[agent]) for agent in drawn if agent not in self.plan.chosen
        )

    # ---- as a collector --------------------------------------------------------------------------

    def limit(self, task: Task) -> int:
        return self.shipment.limit(task)

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        if task.round != self.plan.round:
            self._late.check(task, update, elapsed)
        else:
            check_update(self.run, self.shipment, task, update, elapsed)

    def fold(self, state: TaskState, update: Update) -> None:
        run, agent = self.run, update.agent
        with timing(run.publish, "fold"):
            parts = run.method.parts(
                self.state, self.shipment.parcel(update.submodel).plan, to_torch(update)
            )
            run.defences.fold(self.total, self.state, update.submodel, parts, (agent, update.round))
        entry = describe_fold(state, update, len(self.folded))
        self._record(
            Folded(
                entry,
                update.submodel.plain,
                self._learn(state, update),
                dict(update.notes.get("tallies", {})),
            ),
            update.round,
        )
        run.publish(UpdateFolded(entry))

    def prepare(self, agent: str) -> Planned:
        verdict = self.plan.verdicts[agent]
        assert verdict.submodel is not None
        self.run.store.agents.mark_asked(
            self.plan.round,
            agent,
            f"asked while the round was under way: {verdict.decision.reason}",
        )
        log.info(
            "%s is asked in round %d, which is under way: %s",
            agent,
            self.plan.round,
            verdict.submodel.unowned.name,
        )
        return self.make_task(agent, verdict.submodel)

    def snapshot(self) -> Snapshot | None:
        if isinstance(self.total, Kept):
            return None  # a rule that looks at all updates together keeps them apart
        run, name = self.run, f"total-{self.plan.round:06d}-{len(self.folded):06d}.safetensors"
        run.defences.write()
        with timing(run.publish, "snapshot"):
            run.store.journal.write_total(name, self.total)
        self.reserve_room()
        return Snapshot(name, tuple(self.folded.values()))

    def _record(self, one: Folded, round: int) -> None:
        self.folded[one.entry.agent, round] = one
        self.history = record_fold(self.history, one, round)

    def _learn(self, state: TaskState, update: Update) -> Standing:
        """The standing of an agent after its update."""
        standing = self.history.standings.get(update.agent, Standing())
        agent, verdict = (
            self.run.fleet.agents.get(update.agent),
            self.plan.verdicts.get(update.agent),
        )
        # as late, when its round closed
        counted = state.carried and self.run.config.fleet.mode == "sync"
        if agent is None or agent.profile is None or verdict is None or counted:
            return standing
        return learn_from_update(standing, verdict, agent.profile, state, update)


# ---- from the first task to the last update ------------------------------------------------------


def train(training: Training) -> Trained:
    """Send the tasks, fold the updates until the phase closes, and sum up what they brought.

    What was folded leaves the spool with every snapshot: each `journal.every` folds, and as soon as
    an update finds no room there.
    """
    collect_updates(training)
    run, number, fleet = training.run, training.plan.round, training.run.fleet
    run.defences.write()
    fleet.inbox.reserve = measure_growth(run, training.state)  # for the round's own weights
    folded, settled = training.folded, fleet.round.settled
    missing = [state for state in settled if (state.task.agent, state.task.round) not in folded]
    late = [state for state in fleet.late if state.task.round == number]
    entries = [
        *(one.entry for one in folded.values()),
        *(describe_miss(state, number) for state in missing),
    ]
    misses = [(state, state.outcome) for state in missing]
    if run.config.fleet.mode == "sync":
        misses += [(state, "late") for state in late]
    history = record_standings(training.history, learn_from_misses(training, misses))
    history = record_tasks(
        history, [state.task for state in (*settled, *late) if state.task.round == number]
    )
    history = record_counts(history, entries)
    scores = of_training([(one.submodel, one.entry.agent, one.tallies) for one in folded.values()])
    return Trained(
        run.defences.combine(training.total, training.state),
        sorted(entries, key=lambda entry: entry.agent),
        scores,
        history,
    )


def collect_updates(training: Training) -> None:
    """Run the phase to its end, unless an earlier process did; from then on, late updates are only
    checked.
    """
    run, number, fleet = training.run, training.plan.round, training.run.fleet
    if fleet.round.trained < number:
        phase = fleet.round.phase
        if phase is None or (phase.work, phase.round) != ("train", number):
            training.reserve_room()
            fleet.driver.begin(training.make_phase(), training)
        fleet.driver.collect("train", training)
        fleet.finish_phase()
    if run.past is not None:
        fleet.driver.collect("train", LateUpdates(run))


def learn_from_misses(
    training: Training, misses: Sequence[tuple[TaskState, str]]
) -> dict[str, Standing]:
    """The standings of agents after tasks without an update. misses: each task with what became of
    it.
    """
    run, found = training.run, dict[str, Standing]()
    for state, outcome in misses:
        agent = state.task.agent
        verdict = training.plan.verdicts.get(agent)
        if verdict is not None:
            elapsed = (
                run.fleet.round.ended - state.asked
                if run.measures_time and not state.resumed
                else 0.0
            )
            found[agent] = learn_from_miss(
                found.get(agent, training.history.standings[agent]),
                verdict,
                state,
                outcome,
                elapsed,
            )
    return found


# ---- what a training needs -----------------------------------------------------------------------


def complete_recipe(recipe: Recipe, config: Config) -> Recipe:
    """The method's recipe, with the scores that the run wants of devices."""
    return replace(recipe, scores=config.evaluate.local, per_class=config.evaluate.per_class)


def count_holders(
    trained: Map[str, frozenset[Submodel]], plan: RoundPlan
) -> Counter[tuple[Submodel, ...]]:
    """How many agents have each set of submodels (see `State.holders`). trained: by agent, in
    earlier rounds.
    """
    given = {
        agent: {verdict.submodel.plain}
        for agent, verdict in plan.verdicts.items()
        if verdict.submodel is not None
    }
    held = (
        trained.get(agent, frozenset()) | given.get(agent, set())
        for agent in sorted({*trained, *given})
    )
    return Counter(
        tuple(sorted(submodels, key=lambda submodel: submodel.name)) for submodels in held
    )


def measure_reserve(run: RunContext, state: State) -> int:
    """Bytes that no update may take: for a snapshot of the total beside the one before, for weights
    that are evaluated, and for rows.
    """
    menu = {
        submodel.plain: sum(math.prod(shape) for shape in shapes(submodel).values())
        for submodel in run.menu
    }
    return max(
        0, 2 * measure_growth(run, state) + 4 * sum(menu.values()) + MARGIN - run.store.journal.size
    )


def measure_growth(run: RunContext, state: State) -> int:
    """Bytes of a state's tensors, and of those that a round may add to them in homes that nothing
    was folded into yet.
    """
    rows = (row for submodel in run.menu for row in run.method.place(state, submodel).rows)
    new = {row.home: 4 * math.prod(row.shape) for row in rows if row.home not in state.tensors}
    return sum(tensor.nbytes for tensor in state.tensors.values()) + sum(new.values())
