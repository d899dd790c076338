"""Run the training of a round: send tasks, add the agents' updates to the sum (fold them), and
record the results.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from immutables import Map
from msgspec import structs

from coordinator.assign.agent_track_record import Standing
from coordinator.assign.selection import make_generator
from coordinator.fleet.submodel_shipment import Shipment, to_torch
from coordinator.observe.events import UpdateFolded, time_stage
from coordinator.observe.fleet_scores import score_training
from coordinator.observe.round_records import Entry, Folded, Score
from coordinator.phases.collectors import LateUpdates, accept_update, check_update, make_check
from coordinator.phases.fleet_history import (
    FleetHistory,
    record_counts,
    record_fold,
    record_standings,
    record_tasks,
)
from coordinator.phases.run_context import RunContext
from coordinator.phases.task_outcomes import (
    describe_fold,
    describe_miss,
    learn_from_miss,
    learn_from_update,
)
from coordinator.round.collector_interface import Collector, Snapshot
from coordinator.round.round_events import PhaseBegan
from coordinator.round.round_state import RoundPlan, list_tasks
from coordinator.round.task_state import Planned, Spare, TaskState
from coordinator.round.tensor_check import Examined, TensorCheck
from coordinator.settings.config import Config
from coordinator.trust.update_checks import limit_claims
from federated.engine import fused_addition
from federated.engine.aggregate import Total
from federated.engine.contribution_checks import UnfitPart
from federated.engine.update_part_files import PartStore
from federated.errors import ConfigError
from federated.method import State
from federated.task import Recipe, Task, Update
from federated.wire.codecs.catalogue import find_codec
from federated.wire.codecs.codec import Tensors
from federated.wire.codecs.raw import RAW
from models.submodel import Submodel
from models.submodel_building import shapes

__all__ = ["BATCH", "Trained", "Training", "complete_recipe", "train"]

log = logging.getLogger(__name__)

BATCH = 16  # largest number of updates that are added together in one pass
# bytes of the updates that are added together: their files are in memory at the same time
TOGETHER = 64 << 20
MARGIN = 2**23  # bytes: twice the size to which SQLite's log may grow


@dataclass(frozen=True)
class Trained:
    """The results of a training.

    total: sum of the folded updates after the run's robust rule; its mean is the aggregate.
    entries: outcome of each task, by agent.
    scores: of the devices before and after they trained, if the run asks for them.
    history: results of all rounds, including this training.
    """

    total: Total
    entries: Sequence[Entry]
    scores: Sequence[Score]
    history: FleetHistory


class Training(Collector):
    """A training in progress: makes tasks, and checks and folds updates (see `Collector`).

    plan: plan of the round.
    state: state at the start of the round, with the surveys and submodels of its agents.
    shipment: the weights of that state, as published to agents.
    history: results of all rounds, including the updates that this training folded so far.
    total: the sum so far.
    folded: (agent, round of the task) -> the folded update.
    """

    def __init__(
        self, run: RunContext, state: State, history: FleetHistory, plan: RoundPlan
    ) -> None:
        # write the norms of late updates since the last round: bounds must not depend on restarts
        run.defences.write()
        self.run, self.plan = run, plan
        self.state = state = replace(
            state,
            agents=plan.surveys,
            fleet=dict(plan.fleet),
            holders=count_holders(history.trained, plan),
        )
        self.shipment = Shipment(run.fleet, self.state, run.method)
        self.history = record_standings(history, plan.standings)
        self._most = count_together(state)
        self.total: Total | PartStore = run.defences.begin(
            plan.round, plan.chosen.values()
        ) or Total(most=self._most)
        self.folded: dict[tuple[str, int], Folded] = {}
        self._recipe = cache(
            # `self` in a cached function would be a cycle: the total would outlive its round
            lambda submodel: complete_recipe(run.method.recipe(state, submodel), run.config)
        )
        self._late = LateUpdates(run)

    def restore(self, total: Total, folded: Sequence[Folded]) -> None:
        """Continue from a snapshot."""
        self.total = total
        total.most = self._most
        for one in folded:
            self._record(one, one.entry.task or self.plan.round)

    def make_task(self, agent: str, submodel: Submodel) -> Planned:
        """Return the task of an agent. Publish its weights unless another agent got them before."""
        run, plan, verdict = self.run, self.plan, self.plan.verdicts[agent]
        rounds = 1 if run.past is None else 1 + run.past.staleness  # that may accept the update
        task = self.shipment.task(
            agent,
            submodel,
            self._recipe(submodel),
            rounds * plan.limit,
            round=plan.round,
            codec=run.choose_weights_codec(agent),
        )
        since = self._find_last_accepted(agent)
        task = replace(task, attempt=plan.attempt, since=since, codec=verdict.codec)
        task = run.complete_task(task)
        return Planned(task, verdict.decision.seconds, agent in plan.probed)

    def _find_last_accepted(self, agent: str) -> int:
        """Return the round of the last task with an accepted update, 0 if there is none. The update
        may still wait to be folded: it contains what the agent kept of an earlier round, which must
        not be sent again.
        """
        accepted = (
            state.task.round
            for state in list_tasks(self.run.fleet.round, agent)
            if state.task.work == "train" and state.came
        )
        return max(self.history.folded.get(agent, 0), *accepted, 0)

    def make_phase(self) -> PhaseBegan:
        """Return the event that begins the phase, with all its tasks."""
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
        """Reserve disk space that updates may not use, for the coordinator's own files."""
        self.run.fleet.inbox.reserve = measure_reserve(self.run, self.shipment)

    def _spares(self) -> tuple[Spare, ...]:
        """Return the agents that can train but were not asked, in random order; without suspects,
        unless the round waits for no particular agent.
        """
        verdicts, agents = self.plan.verdicts, self.run.fleet.agents
        order = make_generator(self.run.config.seed, 4, self.plan.round).permutation(
            sorted(verdicts)
        )
        return tuple(
            Spare(agent, verdicts[agent].decision.seconds)
            for agent in order.tolist()
            if agent not in self.plan.chosen
            and (self.run.past is not None or not agents[agent].suspect)
        )

    # ---- as a collector --------------------------------------------------------------------------

    def received(self, task: Task) -> Tensors:
        late = task.round != self.plan.round
        if late:
            return self._late.received(task)
        return self.shipment.received(task.submodel, task.weights_codec)

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        if task.round != self.plan.round:
            self._late.check(task, update, elapsed)
        else:
            check_update(self.run, self.shipment, task, update, elapsed)

    def describe_check(self, task: Task) -> TensorCheck | None:
        sent = self.shipment.find_published(task.submodel, task.weights_codec)
        if task.round != self.plan.round or sent is None:
            return None  # the weights that the agent received may be gone
        return make_check(self.run, self.shipment, task, str(sent.path))

    def accept(self, task: Task, examined: Examined, elapsed: float) -> None:
        accept_update(self.run, task, examined, elapsed)

    def fold(self, state: TaskState, update: Update) -> None:
        run, agent = self.run, update.agent
        with time_stage(run.publish, "fold"):
            exact = self._restore(state.task, update)
            counted = limit_claims(exact, self._recipe(update.submodel), self.plan.most_examples)
            plan, key = self.shipment.parcel(update.submodel).plan, (agent, update.round)
            parts = run.method.parts(self.state, plan, to_torch(counted))
            try:
                run.defences.fold(self.total, self.state, update.submodel, parts, key)
            except UnfitPart as error:
                problem = f"method {run.method.name}: wrong `parts` of the update of {agent}"
                raise ConfigError(f"{problem}: {error}") from error
        entry = describe_fold(state, update, len(self.folded))
        standing, tallies = self._learn(state, update), dict(update.notes.get("tallies", {}))
        self._record(Folded(entry, update.submodel.plain, standing, tallies), update.round)
        run.publish(UpdateFolded(entry))

    def _restore(self, task: Task, update: Update) -> Update:
        """Return an update as if its agent had received the weights without a codec."""
        if task.round != self.plan.round:
            return self._late.restore(task, update)
        return self.shipment.restore(update, task.weights_codec)

    def settle(self) -> None:
        if isinstance(self.total, Total):
            with time_stage(self.run.publish, "fold"):
                self.total.settle()

    def prepare(self, agent: str) -> Planned:
        verdict, number = self.plan.verdicts[agent], self.plan.round
        assert verdict.submodel is not None
        self.run.store.agents.mark_asked(
            number, agent, f"selected as a replacement: {verdict.decision.reason}"
        )
        name = verdict.submodel.unowned.name
        log.info("%s is asked in round %d as a replacement: %s", agent, number, name)
        return self.make_task(agent, verdict.submodel)

    def snapshot(self) -> Snapshot | None:
        if isinstance(self.total, PartStore):
            return None  # a rule that needs all updates together keeps them apart
        run, name = self.run, f"total-{self.plan.round:06d}-{len(self.folded):06d}.safetensors"
        run.defences.write()
        with time_stage(run.publish, "snapshot"):
            digest = run.store.journal.write_total(name, self.total)
        self.reserve_room()
        return Snapshot(name, tuple(self.folded.values()), digest)

    def _record(self, one: Folded, round: int) -> None:
        self.folded[one.entry.agent, round] = one
        self.history = record_fold(self.history, one, round)

    def _learn(self, state: TaskState, update: Update) -> Standing:
        """Return the standing of an agent after its update."""
        standing = self.history.standings.get(update.agent, Standing())
        agent = self.run.fleet.agents.get(update.agent)
        verdict = self.plan.verdicts.get(update.agent)
        # a carried task counted as late when its round closed
        counted = state.carried and self.run.config.fleet.mode == "sync"
        if agent is None or agent.profile is None or verdict is None or counted:
            return standing
        return learn_from_update(standing, verdict, agent.profile, state, update)


# ---- from the first task to the last update ------------------------------------------------------


def train(training: Training) -> Trained:
    """Send the tasks, fold updates until the phase closes, and return the results.

    Folded updates leave the spool with each snapshot: every `journal.every` folds, and as soon as
    the spool has no room for an update.
    """
    collect_updates(training)
    run, number, fleet = training.run, training.plan.round, training.run.fleet
    run.defences.write()
    fleet.inbox.reserve = measure_growth(run, training.shipment)  # for the weights of this round
    folded, settled = training.folded, fleet.round.settled
    late = [
        state
        for state in fleet.late
        # a resumed round may have probes of its calibration or evaluation
        if (state.task.round, state.task.work) == (number, "train")
    ]
    probes = [
        structs.replace(state, outcome=state.outcome or "late") for state in late if state.probe
    ]
    missing = [
        state for state in (*settled, *probes) if (state.task.agent, state.task.round) not in folded
    ]
    entries = [
        *(one.entry for one in folded.values()),
        *(describe_miss(state, number) for state in missing),
    ]
    misses = [(state, state.outcome) for state in missing]
    if run.config.fleet.mode == "sync":
        misses += [(state, "late") for state in late if not state.probe]
    history = record_standings(training.history, learn_from_misses(training, misses))
    history = record_tasks(
        history, [state.task for state in (*settled, *late) if state.task.round == number]
    )
    return Trained(
        run.defences.combine(training.total, training.state),
        sorted(entries, key=lambda entry: entry.agent),
        score_training(
            [(one.submodel, one.entry.agent, one.tallies) for one in folded.values()],
            run.count_ratio,
        ),
        record_counts(history, entries),
    )


def collect_updates(training: Training) -> None:
    """Run the phase to its end, unless an earlier process did. Afterwards, only check late
    updates.
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
    """Return the standings of agents after tasks without an update. misses: each task with its
    outcome.
    """
    run, found = training.run, dict[str, Standing]()
    for state, outcome in misses:
        agent = state.task.agent
        verdict = training.plan.verdicts.get(agent)
        if verdict is not None:
            measured = run.measures_time and not state.resumed
            elapsed = run.fleet.round.ended - state.asked if measured else 0.0
            standing = found.get(agent, training.history.standings[agent])
            found[agent] = learn_from_miss(standing, verdict, state, outcome, elapsed)
    return found


# ---- inputs of a training ------------------------------------------------------------------------


def count_together(state: State) -> int:
    """Return the number of updates to add together. Unless the extra `fast` is installed, which
    gains most from many, they take the memory of at most `TOGETHER` bytes, or of one update.
    """
    if fused_addition.is_installed():
        return BATCH
    size = sum(value.nbytes for value in state.tensors.values())
    return max(1, min(BATCH, TOGETHER // max(1, size)))


def complete_recipe(recipe: Recipe, config: Config) -> Recipe:
    """Return the method's recipe with the scores that the run asks devices for."""
    return replace(recipe, scores=config.evaluate.local, per_class=config.evaluate.per_class)


def count_holders(
    trained: Map[str, frozenset[Submodel]], plan: RoundPlan
) -> Counter[tuple[Submodel, ...]]:
    """Return the number of agents with each set of submodels (see `State.holders`). trained: agent
    -> submodels of earlier rounds.
    """
    held = {agent: set(submodels) for agent, submodels in trained.items()}
    for agent, verdict in plan.verdicts.items():
        if verdict.submodel is not None:
            held.setdefault(agent, set()).add(verdict.submodel.plain)
    return Counter(
        tuple(sorted(held[agent], key=lambda submodel: submodel.name)) for agent in sorted(held)
    )


def measure_reserve(run: RunContext, shipment: Shipment) -> int:
    """Return the bytes to keep from updates: for a second snapshot of the total, for weights in
    evaluation, and for database rows.
    """
    menu = {
        submodel.plain: sum(math.prod(shape) for shape in shapes(submodel).values())
        for submodel in run.menu
    }
    # raw, and encoded for the agents that can decode them
    each = sum(find_codec(name).size(1) for name in {RAW.name, run.config.wire.weights_codec})
    needed = 2 * measure_growth(run, shipment) + each * sum(menu.values()) + MARGIN
    return max(0, needed - run.store.journal.size)


def measure_growth(run: RunContext, shipment: Shipment) -> int:
    """Return the bytes of a state's tensors, and of those that a round may add at new homes.

    shipment: the weights of that state.
    """
    state = shipment.state
    rows = (row for submodel in run.menu for row in shipment.parcel(submodel).plan.rows)
    new = {row.home: 4 * math.prod(row.shape) for row in rows if row.home not in state.tensors}
    return sum(tensor.nbytes for tensor in state.tensors.values()) + sum(new.values())
