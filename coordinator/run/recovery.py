"""Resume an interrupted round: replay the journal, and publish the weights again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache

from coordinator.fleet.submodel_shipment import Shipment
from coordinator.phases.collectors import LateUpdates, rebuild_shipment
from coordinator.phases.fleet_history import FleetHistory, record_tasks
from coordinator.phases.run_context import RunContext
from coordinator.phases.training import Training
from coordinator.round.round_events import (
    PhaseBegan,
    RoundEvent,
    RoundPlanned,
    TaskAdded,
    TasksDropped,
)
from coordinator.store.journal import Base
from federated.errors import ConfigError, MissingExtra, StoreError, Unknown
from federated.method import State
from federated.task import Key
from federated.wire.codecs.catalogue import find_codec

__all__ = ["resume_round"]

log = logging.getLogger(__name__)


def resume_round(
    run: RunContext, state: State, history: FleetHistory
) -> tuple[FleetHistory, Training | None]:
    """Replay the journal after the last checkpoint, or begin a journal for a new run.

    Return the history with the tasks that the checkpoint left open, and the interrupted training if
    there is one and it can be resumed. Raises StoreError if the journal of the last checkpoint is
    missing or damaged.
    """
    driver, journal = run.fleet.driver, run.fleet.driver.journal
    if journal is None:
        return history, None
    driver.checkpoint = run.store.checkpoint_id
    found = journal.resume(driver.checkpoint)
    if found is None:
        if not run.store.may_begin_journal:
            raise StoreError(describe_loss(run, state.round))
        if run.fleet.attempt > 1:
            log.warning("found no journal; round %d starts from its beginning", state.round + 1)
        journal.begin(Base(driver.checkpoint, driver.round))
        journal.sweep()
        return history, None
    base, events = found
    load_codecs(base, events)
    open_tasks = [
        one.task
        for one in base.round.tasks.values()
        if one.task.work == "train" and one.task.round <= state.round
    ]
    history = record_tasks(history, open_tasks)
    training, damage = replay(run, state, history, base, events)
    if damage:
        give_up(run, damage)
    training = publish_again(run, training)
    if training is not None:
        training.reserve_room()
    driver.resume(training or LateUpdates(run))
    run.fleet.judge()  # by the present configuration
    return history, training


def load_codecs(base: Base, events: Sequence[RoundEvent]) -> None:
    """Load the codecs of all tasks in a journal, which may be others than the configuration names
    now: updates and weights of these tasks are encoded with them. Raises StoreError.
    """
    tasks = [one.task for one in base.round.tasks.values()]
    for event in events:
        if isinstance(event, PhaseBegan):
            tasks += [planned.task for planned in event.tasks]
        elif isinstance(event, TaskAdded):
            tasks.append(event.planned.task)
    codecs = [(task.codec, "updates") for task in tasks]
    codecs += [(task.weights_codec, "weights") for task in tasks]
    for name, what in sorted(set(codecs)):
        try:
            find_codec(name)
        except (ConfigError, MissingExtra, Unknown) as error:
            raise StoreError(
                f"the round in progress has {what} encoded with the codec '{name}', and {error}; "
                "resume where that codec is installed"
            ) from error


def replay(
    run: RunContext, state: State, history: FleetHistory, base: Base, events: Sequence[RoundEvent]
) -> tuple[Training | None, str]:
    """Rebuild the round and its training from the journal. Return the training, and the damage that
    keeps it from being resumed, if there is any.
    """
    driver, damage = run.fleet.driver, ""
    driver.restore(base.round)
    training: Training | None = None
    if base.round.plan is not None and base.round.plan.round > state.round:
        training = Training(run, state, history, base.round.plan)
        if base.total:
            try:
                total = run.store.journal.read_total(base.total, base.digest)
                training.restore(total, base.folded)
            except StoreError as error:
                training, damage = None, str(error)
    for event in events:
        try:
            driver.replay(event, training)
        except StoreError as error:  # the file of a folded update is missing or damaged
            training, damage = None, str(error)
        if isinstance(event, RoundPlanned):
            training, damage = Training(run, state, history, event.plan), ""
        elif isinstance(event, TasksDropped) and event.round:
            training, damage = None, ""
    return training, damage


def give_up(run: RunContext, damage: str) -> None:
    """Start the round over, since a folded update cannot be folded again. Keep tasks of earlier
    rounds.
    """
    log.error("%s; the round starts over", damage)
    driver, number = run.fleet.driver, run.store.rounds_done + 1
    keys = sorted(
        key
        for key, one in run.fleet.round.tasks.items()
        if key.work == "train" and key.round == number and one.open
    )
    driver.handle(TasksDropped(run.fleet.clock(), tuple(keys), "the round starts over", round=True))
    driver.rebase()


def publish_again(run: RunContext, training: Training | None) -> Training | None:
    """Publish the weights of open tasks again. Drop tasks whose weights differ now, because an
    earlier version of the program made them.

    Return the training, or None if its own weights differ, so that the round starts over.
    """
    fleet, earlier = run.fleet, cache(lambda number: rebuild_earlier(run, number))
    late_counts = run.past is not None
    dropped, restart = list[Key](), False
    for state in fleet.round.tasks.values():
        task = state.task
        if (
            task.work != "train"
            or state.outcome
            or state.outlasting  # given up as soon as the round resumes
            or not (state.open or (state.carried and not late_counts))
        ):
            continue
        current = (
            training is not None
            and task.round == training.plan.round
            and (late_counts or not state.carried)
        )
        shipment = None
        if training is not None and current:
            shipment = training.shipment
        elif late_counts:
            shipment = earlier(task.round)
        if shipment is None or task.digest != (
            shipment.task(
                task.agent,
                task.submodel,
                task.recipe,
                task.deadline,
                round=task.round,
                codec=task.weights_codec,
            ).digest
        ):
            log.warning(
                "dropped the task of %s in round %d: this version of the program makes other "
                "weights for it",
                task.agent,
                task.round,
            )
            dropped.append(task.key)
            restart = restart or current
        else:
            run.graphs.restore(task)
    if dropped:
        reason = (
            "its weights cannot be rebuilt"
            if late_counts or restart
            else "late updates no longer count"
        )
        fleet.driver.handle(TasksDropped(fleet.clock(), tuple(sorted(dropped)), reason, restart))
    if restart:
        fleet.driver.rebase()  # so that the files of folded updates can be removed
        return None
    return training


def rebuild_earlier(run: RunContext, number: int) -> Shipment | None:
    """Return the shipment of an earlier round; None if what its late updates need is damaged."""
    assert run.past is not None, "tasks are carried only if late updates count"
    try:
        run.past.base(number - 1, run.store.rounds_done)
        return rebuild_shipment(run, number)
    except StoreError as error:
        log.error("%s", error)
        return None


def describe_loss(run: RunContext, number: int) -> str:
    """Return the error for a run without a journal that continues a round."""
    folder, name = run.store.folder, run.config.name
    if not number:
        return (
            f"run '{name}': the database has no finished round, but {folder} has files of rounds: "
            "the database lost rounds, perhaps with its write-ahead log; restore the folder from "
            "a backup, or start a new run from its weights (model.init = "
            f"'{folder}/round-NNNNNN.safetensors')"
        )
    return (
        f"run '{name}': expected a journal that continues round {number} in {folder}, found none; "
        "if `coordinator simulate` made this run, resume it with that command; otherwise "
        f"run coordinator check {name} --repair, which starts round {number + 1} over, or restore "
        "the folder from a backup"
    )
