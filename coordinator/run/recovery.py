"""A coordinator that resumes a run takes up the round that an earlier process left: it replays the
journal, and publishes the weights again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache

from coordinator.phases.context import RunContext
from coordinator.phases.fleet_history import FleetHistory, record_tasks
from coordinator.phases.late_updates import LateUpdates, ship_again
from coordinator.phases.training import Training
from coordinator.round.round_events import RoundEvent, RoundPlanned, TasksDropped
from coordinator.store.journal import Base
from federated.errors import StoreError
from federated.method import State
from federated.task import Key

__all__ = ["resume_round"]

log = logging.getLogger(__name__)


def resume_round(
    run: RunContext, state: State, history: FleetHistory
) -> tuple[FleetHistory, Training | None]:
    """Replay what an earlier process wrote since the last checkpoint; begin the journal where there
    is none.

    Return the history with the tasks that the checkpoint left open, and the training that was under
    way, if there was one and it can be resumed. Raises StoreError where the journal of the last
    checkpoint is gone.
    """
    driver, journal = run.fleet.driver, run.fleet.driver.journal
    if journal is None:
        return history, None
    driver.checkpoint = run.store.checkpoint_id
    found = journal.resume(driver.checkpoint)
    if found is None:
        if state.round:
            raise StoreError(describe_loss(run, state.round))
        journal.begin(Base("", driver.round))
        return history, None
    base, events = found
    open_tasks = [
        one.task
        for one in base.round.tasks.values()
        if one.task.work == "train" and one.task.round <= state.round
    ]
    history = record_tasks(history, open_tasks)
    training, damaged = replay(run, state, history, base, events)
    if damaged:
        give_up(run, damaged)
    training = publish_again(run, training)
    if training is not None:
        training.reserve_room()
    driver.resume(training or LateUpdates(run))
    run.fleet.judge()  # by the present configuration
    return history, training


def replay(
    run: RunContext, state: State, history: FleetHistory, base: Base, events: Sequence[RoundEvent]
) -> tuple[Training | None, str]:
    """Rebuild the round and its training from the journal. Return them, and what keeps the training
    from being resumed, if something does.
    """
    driver, damaged = run.fleet.driver, ""
    driver.restore(base.round)
    training: Training | None = None
    if base.round.plan is not None and base.round.plan.round > state.round:
        training = Training(run, state, history, base.round.plan)
        if base.total:
            training.restore(run.store.journal.total(base.total), base.folded)
    for event in events:
        try:
            driver.replay(event, training)
        except StoreError as error:  # an update that was folded is not what it was
            training, damaged = None, str(error)
        if isinstance(event, RoundPlanned):
            training, damaged = Training(run, state, history, event.plan), ""
        elif isinstance(event, TasksDropped) and event.round:
            training, damaged = None, ""
    return training, damaged


def give_up(run: RunContext, damaged: str) -> None:
    """Give up the round under way, which begins anew, where an update that was folded cannot be
    folded again. Tasks of earlier rounds stay.
    """
    log.error("%s; the round begins anew", damaged)
    driver, number = run.fleet.driver, run.store.rounds_done + 1
    keys = sorted(
        key
        for key, one in run.fleet.round.tasks.items()
        if key.work == "train" and key.round == number and one.open
    )
    driver.handle(TasksDropped(run.fleet.clock(), tuple(keys), "the round begins anew", round=True))
    driver.rebase()


def publish_again(run: RunContext, training: Training | None) -> Training | None:
    """Publish the weights of open tasks again, and drop those tasks whose weights this program
    makes differently than the one that died.

    Return the training, or None if its own weights are among them, so that the round begins anew.
    """
    fleet, earlier = run.fleet, cache(lambda number: ship_again(run, number))
    dropped, anew = list[Key](), False
    for state in fleet.round.tasks.values():
        task = state.task
        if (
            task.work != "train"
            or state.outcome
            or not (state.open or (state.carried and run.past is None))
        ):
            continue
        counts = run.past is not None or not state.carried
        under_way = training is not None and task.round == training.plan.round and counts
        made = (
            training.shipment
            if training is not None and under_way
            else earlier(task.round)
            if run.past is not None
            else None
        )
        if (
            made is None
            or made.task(
                task.agent, task.submodel, task.recipe, task.deadline, round=task.round
            ).digest
            != task.digest
        ):
            log.warning(
                "round %d of %s was under way with other weights than this program "
                "makes: it is dropped",
                task.round,
                task.agent,
            )
            dropped.append(task.key)
            anew = anew or under_way
    if dropped:
        reason = (
            "its weights cannot be made again"
            if run.past is not None or anew
            else "late updates do not count any more"
        )
        fleet.driver.handle(TasksDropped(fleet.clock(), tuple(sorted(dropped)), reason, anew))
    if anew:
        fleet.driver.rebase()  # the files of what was folded may go
        return None
    return training


def describe_loss(run: RunContext, number: int) -> str:
    """What is wrong where no journal continues a round, and what to do."""
    folder = run.store.folder
    return (
        f"run '{run.config.name}': expected a journal that continues round {number} in "
        f"{folder}, found none; restore the folder from a backup, "
        f"or start a new run from its weights: --init {folder}/round-{number:06d}.safetensors"
    )
