"""Update the state of a round when an update is offered, received, refused, added to the sum
(folded), or stored in a snapshot.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.observe.events import TaskFailed as FailureReported
from coordinator.round import round_events as on
from coordinator.round.agent_handlers import put_agent, put_due_task, see_agent
from coordinator.round.leases import count_wasted
from coordinator.round.round_actions import Action, Answer, Forget, Receive, Relieve, Report
from coordinator.round.round_state import Agent, Pace, Round, find_task, put_task
from coordinator.round.task_state import TaskState
from federated.task import Key, Work

__all__ = [
    "accept_update",
    "answer_offer",
    "finish_fold",
    "finish_snapshot",
    "mark_full",
    "record_chunk",
    "record_failure",
    "refuse_update",
    "reopen_task",
]


def answer_offer(r: Round, e: on.UpdateOffered, out: list[Action]) -> Round:
    """Receive an offered update if its task is open; otherwise answer at once."""
    offer, transfer = e.offer, e.offer.manifest.transfer
    state = find_task(r, Key(e.agent, offer.submodel, offer.round, offer.work), offer.attempt)
    if state is None or state.task.run != offer.run:
        reason = (
            f"nothing waits for this update: its {offer.work} task of round {offer.round}, attempt "
            f"{offer.attempt}, is unknown, is over, or was given up"
        )
        out.append(Answer(e.agent, transfer, False, reason, "unasked"))
    elif state.came:
        out.append(Answer(e.agent, transfer, True, "already received"))
    elif state.outcome:
        out.append(Answer(e.agent, transfer, False, state.outcome, "answered"))
    else:
        out.append(Receive(e.agent, offer))
        return put_agent(r, see_agent(r, e.agent))
    return r


def record_chunk(r: Round, e: on.ChunkCame, out: list[Action]) -> Round:
    """Count a chunk as progress."""
    r, state = put_agent(r, see_agent(r, e.key.agent)), r.tasks.get(e.key)
    if state is None or not state.open:
        return r
    return put_task(r, replace(state, moved=r.now, sent=r.now))


def accept_update(r: Round, e: on.UpdateCame, out: list[Action]) -> Round:
    """Accept a complete update: record how long it took, and that the agent delivers. The update of
    a probe whose phase has closed has no other effect.
    """
    state = find_task(r, e.key, e.attempt)
    if state is None or not state.open:
        return r
    closed = f"round {state.task.round} is closed" if state.outlasting else ""
    out.append(Answer(e.key.agent, e.transfer, not closed, closed, "answered"))
    seconds, agent, work = state.elapsed(r.now), see_agent(r, e.key.agent), e.key.work
    if work in agent.wasted:
        wasted = {**agent.wasted, work: replace(agent.wasted[work], delivered=True)}
        agent = replace(agent, wasted=wasted)
    if work == "train" and not closed:
        agent = replace(agent, loss=e.loss)
    r = count_slow_update(put_agent(r, agent), state)
    if state.seconds > 0 and not state.resumed:
        r = put_agent(r, record_pace(r.agents[agent.name], work, seconds, state.seconds))
    if closed:
        out.append(Forget(e.key))
        return put_task(r, replace(state, stage="done", outcome="late"))
    return put_task(
        r,
        replace(state, stage="whole", digest=e.digest, seconds=seconds, waiting=-1.0),
    )


def record_pace(agent: Agent, work: Work, seconds: float, predicted: float) -> Agent:
    """Record how long a task took."""
    before = agent.pace.get(work)
    shortest = min(seconds, before.shortest) if before is not None else seconds
    return replace(agent, pace={**agent.pace, work: Pace(seconds / predicted, shortest)})


def count_slow_update(r: Round, state: TaskState) -> Round:
    """Count a wasted lease of a task whose lease was extended by progress, so that an agent cannot
    delay every phase by that long. A device may be slow once: the first one has no consequence.
    """
    if state.place < 0 or state.late or not 0 < state.task.lease < state.awaited(r.now):
        return r
    return count_wasted(r, state, lenient=True)


def reopen_task(r: Round, e: on.UpdateLost, out: list[Action]) -> Round:
    """Wait again for an update that was lost, also if it had completed the quorum."""
    if r.phase is not None and r.phase.folding == e.key:
        r = replace(r, phase=replace(r.phase, folding=None))
    if r.phase is not None and r.phase.closing == "quorum" and not r.phase.closed:
        r = replace(r, phase=replace(r.phase, closing=""))
    agent, state = r.agents.get(e.key.agent), r.tasks[e.key].reopen(r.now)
    lost = -1.0 if agent is not None and agent.online else r.now
    return put_due_task(r, replace(state, lost=lost))


def refuse_update(r: Round, e: on.UpdateRefused, out: list[Action]) -> Round:
    """End a task with an update that was refused."""
    state = find_task(r, e.key, e.attempt)
    if state is None or not state.open:
        return r
    out.append(Answer(e.key.agent, e.transfer, False, e.reason, e.kind))
    r = count_long_task(put_agent(r, see_agent(r, e.key.agent)), state)
    return put_task(r, replace(state, stage="done", outcome=f"refused: {e.reason}"))


def record_failure(r: Round, e: on.TaskFailed, out: list[Action]) -> Round:
    """End a task that its agent failed or declined while paused."""
    state = find_task(r, e.key, e.attempt)
    if state is None or not state.open:
        return r
    outcome = f"{'paused' if e.paused else 'failed'}: {e.reason}"
    out.append(Report(FailureReported(e.key.agent, e.key.submodel, outcome)))
    r = count_long_task(put_agent(r, see_agent(r, e.key.agent)), state)
    return put_task(r, replace(state, stage="done", outcome=outcome))


def count_long_task(r: Round, state: TaskState) -> Round:
    """Count a wasted lease of a task that ends without an update after its lease. Progress extends
    a lease, and an agent must not use that to delay phases repeatedly.
    """
    if r.phase is None or not 0 < state.task.lease < state.elapsed(r.now):
        return r
    return count_wasted(r, state)


def finish_fold(r: Round, e: on.UpdateFolded, out: list[Action]) -> Round:
    """End a task with a folded update. The update's file stays in the spool until a snapshot holds
    it, if there are snapshots.
    """
    r = put_task(r, replace(r.tasks[e.key], stage="done", outcome="folded"))
    r = replace(r, phase=replace(r.current_phase, folding=None))
    if r.rules.durable and r.current_phase.work == "train":
        return replace(r, unkept=(*r.unkept, e.key))
    out.append(Forget(e.key))
    return r


def finish_snapshot(r: Round, e: on.SnapshotTaken, out: list[Action]) -> Round:
    """Remove the updates in the snapshot from the spool. If the snapshot could not be written, it
    is tried again after the next fold.
    """
    saved = frozenset(e.keys if e.written else ())
    out += [Forget(key) for key in e.keys if key in saved]
    if r.full:
        out.append(Relieve(e.written))
    unkept = tuple(key for key in r.unkept if key not in saved)
    refused = 0 if e.written else len(r.unkept)
    return replace(r, unkept=unkept, refused=refused, saving=False, full=False)


def mark_full(r: Round, e: on.SpoolFilled, out: list[Action]) -> Round:
    """Record that the spool has no room."""
    return replace(r, full=True)
