"""Run all rounds of a run, one after the other:

conduct    start or resume, then run one round after the other
run_round  one round: wait for agents, plan, train, finish, evaluate, store
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from coordinator.assign.agent_track_record import Standing, list_active
from coordinator.assign.selection import make_generator
from coordinator.fleet.submodel_shipment import Shipment
from coordinator.fleet.update_file_names import TEMPORARY
from coordinator.observe.events import PrivacySpent, RoundEnded, RoundStarted, time_stage
from coordinator.observe.fleet_scores import is_target_reached
from coordinator.observe.round_records import RoundRecord, Score
from coordinator.phases.evaluation import Evaluator, drop_statistics
from coordinator.phases.fleet_history import FleetHistory, load_history
from coordinator.phases.run_context import RunContext
from coordinator.phases.training import Trained, Training, train
from coordinator.round.round_events import RoundPlanned, TasksDropped
from coordinator.round.round_state import RoundPlan
from coordinator.run.recovery import resume_round
from coordinator.run.round_planning import plan_round
from coordinator.run.waiting_for_agents import wait_before_round, wait_for_plan
from coordinator.store.late_update_bases import encode_touched
from federated.engine.aggregate import Total
from federated.engine.late_updates import Touched, find_touched
from federated.errors import ConfigError, FleetError
from federated.method import State
from federated.runtime.unit_formatting import format_count
from federated.wire.tensors import is_finite
from federated.wire.topics import GRAPHS
from models.slicing import is_variance

__all__ = ["Result", "conduct"]

log = logging.getLogger(__name__)

MAX_DISCARDED = 3  # rounds in a row with weights that are not finite, after which the run fails
SIGN_OFF = 10.0  # seconds for agents to sign off at the end of the run


@dataclass(frozen=True)
class Progress:
    """The state of a run between two rounds.

    state: weights after the last round.
    history: results of all rounds by agent.
    scores: of the last round.
    discarded: number of rounds in a row, up to the last one, whose weights were not finite.
    """

    state: State
    history: FleetHistory
    scores: Sequence[Score]
    discarded: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Result(Progress):
    """The result of a run.

    rounds: number of rounds.
    seconds: that this process ran.
    bytes_up, bytes_down: of all rounds, from and to the agents, through the coordinator's link.
    reached: whether the target accuracy was reached.
    epsilon: largest privacy loss of a device in a private run; 0 in other runs.
    """

    rounds: int
    seconds: float
    bytes_up: int
    bytes_down: int
    reached: bool
    epsilon: float


def conduct(run: RunContext, evaluator: Evaluator, take_first: Callable[[], State]) -> Result:
    """Run rounds until the run is over, after resuming an interrupted one.

    take_first: gives the state before the first round away, whose memory later rounds do not need.
    """
    start = time.monotonic()
    publish_privacy(run)  # spent by earlier processes
    progress = load_progress(run, take_first())
    history, training = resume_round(run, progress.state, progress.history)
    progress = replace(progress, history=history)
    while not is_over(run, progress):
        progress = run_round(run, evaluator, progress, training)
        training = None
        run.control.end_round()
        check_discarded(run, progress.discarded)
    dismiss_agents(run)
    return sum_up(run, progress, time.monotonic() - start)


def load_progress(run: RunContext, first: State) -> Progress:
    """Return the progress of earlier processes, or the start of a new run."""
    history = load_history(run.store, run.menu)
    last = run.store.read_last()
    if last is None:
        return Progress(first, history, ())
    log.info("resuming after round %d", last.round, extra={"event": "resumed"})
    state = replace(first, round=last.round, tensors=dict(last.tensors), fleet=dict(last.fleet))
    return Progress(state, history, history.counts.mark(last.scores))


def publish_privacy(run: RunContext) -> None:
    """Publish the privacy loss of a private run so far."""
    if run.config.private.noise:
        run.publish(PrivacySpent(run.defences.epsilon))


def is_over(run: RunContext, progress: Progress) -> bool:
    """Return True if the run is over: all rounds are done, the target is reached, or another round
    would exceed the privacy budget.
    """
    done = progress.state.round
    if done >= run.config.rounds or is_target_reached(
        progress.scores, run.menu, run.config.target_accuracy
    ):
        return True
    if exhausted := run.defences.exhausted:
        log.warning("the run ends after round %d: %s", done, exhausted)
    return bool(exhausted)


def dismiss_agents(run: RunContext) -> None:
    """Drop late updates, empty the spool, and dismiss all agents."""
    reason = "the run is over"
    if late := tuple(state.key for state in run.fleet.late if not state.outcome):
        run.fleet.driver.handle(TasksDropped(run.fleet.clock(), late, reason, round=False))
    run.fleet.inbox.expect({})
    for folder in "round-*", TEMPORARY:
        run.fleet.inbox.forget(folder)
    run.fleet.dismiss(reason, SIGN_OFF if run.fleet.round.rules.durable else 0.0)


def sum_up(run: RunContext, progress: Progress, seconds: float) -> Result:
    """Return the result of a run that is over."""
    state, scores, rounds = progress.state, progress.scores, run.store.read_history()
    up, down = sum(up for *_, up, _ in rounds), sum(down for *_, down in rounds)
    hit = is_target_reached(scores, run.menu, run.config.target_accuracy)
    return Result(
        state, progress.history, scores, state.round, seconds, up, down, hit, run.defences.epsilon
    )


# ---- one round -----------------------------------------------------------------------------------


def run_round(
    run: RunContext, evaluator: Evaluator, progress: Progress, training: Training | None = None
) -> Progress:
    """Run and store one round, and return the new progress. training: left unfinished by an
    earlier process, if any.
    """
    if training is None:
        wait_before_round(run)
    training = training or begin_training(run, progress)
    start, (up_before, down_before) = time.monotonic(), run.fleet.count_bytes()
    run.control.begin_round()
    plan = training.plan
    run.publish(RoundStarted(plan.round, run.config.rounds, plan.chosen))
    trained = train(training)
    if not trained.total.seen:
        report_empty_round(run, trained)
    elif run.defences.rule is None and not has_weight(trained.total):
        log.warning(
            "nothing is learned in round %d: the `parts` of method %s gave every update weight 0, "
            "expected a weight above 0 of at least one part",
            plan.round,
            run.method.name,
        )
    state, changed, finite = finish_round(run, training.state, trained.total)
    state, scores = evaluate_round(run, evaluator, state, trained, plan)
    withdraw_weights(run, state)
    up, down = run.fleet.count_bytes()
    record = RoundRecord(
        plan.round,
        time.monotonic() - start,
        state.tensors,
        dict(plan.fleet),
        trained.entries,
        scores,
        up - up_before,
        down - down_before,
        trained.history.standings,
        encode_touched(changed) if run.past is not None else "",
    )
    store_round(run, record, changed)
    discarded = 0 if finite else progress.discarded + 1
    return Progress(state, trained.history, scores, discarded=discarded)


def begin_training(run: RunContext, progress: Progress) -> Training:
    """Plan the next round as soon as a ready agent can train. Raises FleetError if none comes."""
    plan = wait_for_plan(run, partial(plan_round, run, progress.state, progress.history))
    # updates of rounds that are over or were given up
    run.fleet.inbox.forget("round-*", keep=[late.key for late in run.fleet.late])
    run.fleet.driver.handle(RoundPlanned(run.fleet.clock(), plan))
    return Training(run, progress.state, progress.history, plan)


def report_empty_round(run: RunContext, trained: Trained) -> None:
    """Warn about a round without updates. Raises FleetError if every agent of the run failed to
    train even the smallest submodel. Other agents may train next, so those that report a failure
    cannot end a run of others.
    """
    reasons = "; ".join(f"{e.agent}: {e.outcome}" for e in trained.entries)
    log.warning("no update in this round: %s", reasons)
    smallest, standings = run.menu[0].unowned.name, trained.history.standings
    if trained.entries and all(
        agent.refused
        or agent.excluded
        or has_failed(standings.get(agent.name, Standing()), smallest)
        for agent in run.fleet.agents.values()
    ):
        problem = "no agent can train even the smallest submodel"
        # so that a resumed run plans the round again
        run.fleet.driver.handle(TasksDropped(run.fleet.clock(), (), problem, round=True))
        raise FleetError(f"{problem}: {reasons}")


def has_failed(standing: Standing, submodel: str) -> bool:
    """Return True if the agent's failure to train the submodel still bars it."""
    return any(
        setback.submodel == submodel and setback.kind != "late" for setback in list_active(standing)
    )


def has_weight(total: Total) -> bool:
    """Return True if a part of an update counts: its weight is above 0."""
    covers = (weight for one in total.sums.values() for weight, *_ in one.cover.values())
    return any(bool(torch.as_tensor(weight > 0).any()) for weight in covers)


def finish_round(run: RunContext, state: State, total: Total) -> tuple[State, Touched, bool]:
    """Return the state after the round, the entries that it changed if late updates count, and
    whether the new weights are finite. Keep the old weights if they are not.
    """
    number = state.round + 1
    with time_stage(run.publish, "finish"):
        after = run.method.finish(state, total, make_generator(run.config.seed, 3, number))
        check_finished(run.method.name, state, after)
        after = drop_statistics(after)
    changed = find_touched(total, after.tensors) if run.past is not None else {}
    finite = all(is_finite(value.detach().numpy()) for value in after.tensors.values())
    if not finite:
        log.error("discarded the weights of round %d, which are not finite", number)
        after, changed = replace(drop_statistics(state), round=number), {}
    run.defences.release(number, total)
    publish_privacy(run)
    return after, changed, finite


def check_discarded(run: RunContext, discarded: int) -> None:
    """Raise ConfigError if the run learns nothing: the weights of the last rounds were not finite.

    discarded: number of such rounds in a row.
    """
    if discarded >= min(MAX_DISCARDED, run.config.rounds):
        raise ConfigError(
            f"method {run.method.name}: the weights of {format_count(discarded, 'round')} in a row "
            "were not finite and were discarded: correct the method's arithmetic, or train in "
            "smaller steps (train.lr)"
        )


def check_finished(method: str, before: State, after: State) -> None:
    """Check the state that a method returned. Raises ConfigError if it is none, if the method did
    not count the round, if it changed the shape or type of a tensor of the network, or if it made a
    variance negative: every network would then compute NaN.
    """
    number = before.round + 1
    if not isinstance(after, State):
        raise ConfigError(
            f"method {method}: expected `finish` to return a State, found {type(after).__name__}: "
            "return replace(state, round=state.round + 1, ...)"
        )
    if after.round != number:
        raise ConfigError(
            f"method {method}: expected `finish` to return the state of round {number}, "
            f"found round {after.round}: return replace(state, round=state.round + 1, ...)"
        )
    for home, old in before.tensors.items():
        found = describe_tensor(after.tensors.get(home))
        if "/" not in home and found != describe_tensor(old):
            raise ConfigError(
                f"method {method}: expected `finish` to return {describe_tensor(old)} for {home}, "
                f"found {found}: keep shape and type of the network's tensors"
            )
    for home, value in after.tensors.items():
        if "/" not in home and is_variance(home) and bool((value < 0).any()):
            raise ConfigError(
                f"method {method}: `finish` returned negative variances in {home}: running "
                "statistics of batch norm are measurements, so take their mean, without momentum "
                "or other steps"
            )


def describe_tensor(value: object) -> str:
    """Return type and shape of a tensor, or what stands in its place."""
    if not isinstance(value, torch.Tensor):
        return "no tensor" if value is None else type(value).__name__
    return f"{value.dtype} {list(value.shape)}"


def evaluate_round(
    run: RunContext, evaluator: Evaluator, state: State, trained: Trained, plan: RoundPlan
) -> tuple[State, Sequence[Score]]:
    """Evaluate submodels after the round; return the state with batch norm statistics, and all
    scores of the round.
    """
    # The next training waits. A device does its tasks one after the other, so it would not begin to
    # train before it has scored. Sending both together would save at most 1.3 of 24.1 s of scoring
    # and training in `make demo`, 0.6 of 12.3 s with nine submodels in every round, and nothing
    # where one device is the slowest at both (0.0 of 16.3 s with 1, 0.4, 0.2 and 0.1 CPUs).
    worked = {
        **plan.chosen,
        **{one.task.agent: one.task.submodel for one in run.fleet.round.settled},
    }
    with time_stage(run.publish, "evaluate"):
        state, scores = evaluator.evaluate(state, worked, trained.history, plan.most_examples)
    return state, trained.history.counts.mark((*scores, *trained.scores))


def withdraw_weights(run: RunContext, state: State) -> None:
    """Withdraw published weights that no open task needs."""
    run.fleet.endpoint.slots.clear(
        keep={
            GRAPHS,
            Shipment.version(state),
            Shipment.version(state, run.config.wire.weights_codec),
            *(late.task.version for late in run.fleet.late),
        }
    )


def store_round(run: RunContext, record: RoundRecord, changed: Touched) -> None:
    """Store the round, remove its updates from the spool, and publish its end."""
    with time_stage(run.publish, "save"):
        run.fleet.driver.end_round(run.store, record)
    if run.past is not None:
        run.past.add(record.round, changed)
    run.fleet.inbox.forget("round-*", keep=[late.key for late in run.fleet.late])
    run.publish(RoundEnded(record))
