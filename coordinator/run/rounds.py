"""The rounds of a run, from top to bottom.

conduct   begin or resume, then one round after the other
advance   one round: wait for agents, plan, train, finish, evaluate, store
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from coordinator.assign.selection import generator
from coordinator.fleet.shipment import Shipment
from coordinator.observe.events import PrivacySpent, RoundBegan, RoundEnded, timing
from coordinator.observe.records import Entry, RoundRecord, Score
from coordinator.observe.score_summary import reached
from coordinator.phases.context import RunContext
from coordinator.phases.evaluation import Evaluator, without_statistics
from coordinator.phases.fleet_history import FleetHistory, recall
from coordinator.phases.training import Trained, Training, train
from coordinator.round.plan import RoundPlan
from coordinator.round.round_events import RoundPlanned, TasksDropped
from coordinator.run.attendance import await_able, await_round
from coordinator.run.planning import plan_round
from coordinator.run.recovery import resume_round
from coordinator.store.past_states import encode_touched
from federated.engine.aggregate import Total
from federated.engine.buffered import Touched, touched
from federated.errors import FleetError
from federated.method import State
from federated.wire.link import Link

__all__ = ["Result", "conduct"]

log = logging.getLogger(__name__)

PARTING = 10.0  # seconds that agents have to sign off when the run is over


@dataclass(frozen=True)
class Progress:
    """How far a run has come.

    state: the weights after the last round.
    history: what the rounds so far have shown of the fleet.
    scores: of the last round.
    """

    state: State
    history: FleetHistory
    scores: Sequence[Score]


@dataclass(frozen=True)
class Result:
    """How a run ended.

    state: the weights after the last round.
    scores: of the last round.
    history: what the rounds have shown of the fleet.
    rounds: how many the run has had.
    seconds: that this process worked on them.
    bytes_up, bytes_down: of all rounds, from and to the agents, through the coordinator's link.
    reached: whether the target accuracy was reached.
    epsilon: what a private run told of the device of which it told most; 0 of another run.
    """

    state: State
    scores: tuple[Score, ...]
    history: FleetHistory
    rounds: int
    seconds: float
    bytes_up: int
    bytes_down: int
    reached: bool
    epsilon: float


def conduct(run: RunContext, evaluator: Evaluator, first: State) -> Result:
    """Run rounds until the run is over; resume an interrupted run where it was. first: the state
    before the first round.
    """
    start = time.monotonic()
    publish_privacy(run)  # spent by earlier processes
    progress = recall_progress(run, first)
    history, training = resume_round(run, progress.state, progress.history)
    progress = replace(progress, history=history)
    while not is_over(run, progress):
        progress = advance(run, evaluator, progress, training)
        training = None
        run.control.end_round()
    dismiss_agents(run)
    return sum_up(run, progress, time.monotonic() - start)


def recall_progress(run: RunContext, first: State) -> Progress:
    """How far earlier processes came; the beginning of a new run."""
    history = recall(run.store, run.menu)
    last = run.store.read_last()
    if last is None:
        return Progress(first, history, ())
    log.info("going on after round %d", last.round)
    state = replace(first, round=last.round, tensors=dict(last.tensors), fleet=dict(last.fleet))
    return Progress(state, history, history.counts.mark(last.scores))


def publish_privacy(run: RunContext) -> None:
    """Say what a private run has told so far."""
    if run.config.private.noise:
        run.publish(PrivacySpent(run.defences.epsilon))


def is_over(run: RunContext, progress: Progress) -> bool:
    """Whether no round is to follow: all are done, the target is reached, or another one would
    spend more privacy than allowed.
    """
    done = progress.state.round
    if done >= run.config.rounds or reached(progress.scores, run.menu, run.config.target_accuracy):
        return True
    if exhausted := run.defences.exhausted:
        log.warning("the run ends after round %d: %s", done, exhausted)
    return bool(exhausted)


def dismiss_agents(run: RunContext) -> None:
    """Drop late updates, empty the spool, and tell all agents that the run is over."""
    late = tuple(state.key for state in run.fleet.late if not state.outcome)
    if late:
        run.fleet.driver.handle(
            TasksDropped(run.fleet.clock(), late, "the run is over", round=False)
        )
    run.fleet.inbox.forget("round-*")
    run.fleet.dismiss("the run is over", PARTING if run.fleet.round.rules.durable else 0.0)


def sum_up(run: RunContext, progress: Progress, seconds: float) -> Result:
    """The result of a run that is over."""
    state, scores = progress.state, tuple(progress.scores)
    rounds = run.store.history()
    up, down = sum(up for *_, up, _ in rounds), sum(down for *_, down in rounds)
    hit = reached(scores, run.menu, run.config.target_accuracy)
    return Result(
        state, scores, progress.history, state.round, seconds, up, down, hit, run.defences.epsilon
    )


# ---- one round -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Usage:
    """What was used so far, to measure what a round uses.

    clock: seconds of any origin.
    up, down: bytes from and to the agents.
    """

    clock: float
    up: int
    down: int


def advance(
    run: RunContext, evaluator: Evaluator, progress: Progress, training: Training | None = None
) -> Progress:
    """Run one round, from stored progress to stored progress. training: as an earlier process left
    it, if one did.
    """
    if training is None:
        await_round(run)
    training = training or begin_training(run, progress)
    before = read_usage(run.fleet.link)
    run.control.begin_round()
    plan = training.plan
    run.publish(RoundBegan(plan.round, run.config.rounds, plan.chosen))
    trained = train(training)
    if not trained.total.seen:
        check_hope(run, trained.entries)
    state, changed = finish_round(run, training.state, trained.total)
    state, scores = evaluate_round(run, evaluator, state, trained, plan)
    withdraw_weights(run, state)
    used = read_usage(run.fleet.link)
    record = RoundRecord(
        plan.round,
        used.clock - before.clock,
        state.tensors,
        dict(plan.fleet),
        trained.entries,
        scores,
        used.up - before.up,
        used.down - before.down,
        trained.history.standings,
        encode_touched(changed) if run.past is not None else "",
    )
    store_round(run, record, changed)
    return Progress(state, trained.history, scores)


def read_usage(link: Link) -> Usage:
    """What was used up to now."""
    return Usage(time.monotonic(), link.received_bytes, link.sent_bytes)


def begin_training(run: RunContext, progress: Progress) -> Training:
    """Plan the next round with the agents that are ready, as soon as one of them can train. Raises
    FleetError where none comes.
    """
    plan = await_able(run, partial(plan_round, run, progress.state, progress.history))
    # of rounds that are over, or that were given up
    run.fleet.inbox.forget("round-*", keep=[late.key for late in run.fleet.late])
    run.fleet.driver.handle(RoundPlanned(run.fleet.clock(), plan))
    return Training(run, progress.state, progress.history, plan)


def check_hope(run: RunContext, entries: Sequence[Entry]) -> None:
    """Warn of a round without an update. Raises FleetError where every agent failed to train even
    the smallest submodel.
    """
    reasons = "; ".join(f"{e.agent}: {e.outcome}" for e in entries)
    log.warning("no update in this round: %s", reasons)
    if entries and all(
        e.outcome.startswith("failed") and e.submodel == run.menu[0].unowned.name for e in entries
    ):
        hopeless = "no agent can train even the smallest submodel"
        # a resumed run plans the round again
        run.fleet.driver.handle(TasksDropped(run.fleet.clock(), (), hopeless, round=True))
        raise FleetError(f"{hopeless}: {reasons}")


def finish_round(run: RunContext, state: State, total: Total) -> tuple[State, Touched]:
    """The state after the round, and what the round folded into, where late updates count. The old
    weights stay where new ones are not finite.
    """
    number = state.round + 1
    with timing(run.publish, "finish"):
        after = without_statistics(
            run.method.finish(state, total, generator(run.config.seed, 3, number))
        )
    changed = touched(total, after.tensors) if run.past is not None else {}
    if not all(bool(value.isfinite().all()) for value in after.tensors.values()):
        log.error("round %d made weights that are not finite; the weights of before stay", number)
        after, changed = replace(without_statistics(state), round=number), {}
    run.defences.release(number, total)
    publish_privacy(run)
    return after, changed


def evaluate_round(
    run: RunContext, evaluator: Evaluator, state: State, trained: Trained, plan: RoundPlan
) -> tuple[State, Sequence[Score]]:
    """Score what the round is to score; return the state with batch norm statistics, and all scores
    of the round.
    """
    worked = {
        **plan.chosen,
        **{one.task.agent: one.task.submodel for one in run.fleet.round.settled},
    }
    with timing(run.publish, "evaluate"):
        state, scores = evaluator.evaluate(state, worked, trained.history)
    return state, trained.history.counts.mark((*scores, *trained.scores))


def withdraw_weights(run: RunContext, state: State) -> None:
    """Take back published weights that no open task needs."""
    run.fleet.endpoint.slots.clear(
        keep={Shipment.version(state), *(late.task.version for late in run.fleet.late)}
    )


def store_round(run: RunContext, record: RoundRecord, changed: Touched) -> None:
    """Store the round, forget what no later round needs, and say that the round is over."""
    with timing(run.publish, "save"):
        run.fleet.driver.end_round(run.store, record)
    if run.past is not None:
        run.past.add(record.round, changed)
    run.fleet.inbox.forget("round-*", keep=[late.key for late in run.fleet.late])
    run.publish(RoundEnded(record))
