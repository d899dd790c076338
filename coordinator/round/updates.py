"""Handlers of events about updates: offered, received, refused, folded, in a snapshot."""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.observe.events import TaskFailed as FailureReported
from coordinator.round import round_events as on
from coordinator.round.actions import Action, Answer, Forget, Receive, Relieve, Report
from coordinator.round.agents import known, with_agent
from coordinator.round.round import Round, awaited, put
from federated.task import Key

__all__ = [
    "chunk",
    "fail",
    "fill",
    "folded",
    "lose_update",
    "offer",
    "refuse",
    "snapshot",
    "update",
]


def offer(r: Round, e: on.UpdateOffered, out: list[Action]) -> Round:
    about, transfer = e.offer, e.offer.manifest.transfer
    state = awaited(r, Key(e.agent, about.submodel, about.round, about.work), about.attempt)
    if state is None or state.task.run != about.run:
        reason = f"round {about.round} of attempt {about.attempt} awaits no such update"
        out.append(Answer(e.agent, transfer, False, reason, "unasked"))
    elif state.came:
        out.append(Answer(e.agent, transfer, True, "already there"))
    elif state.outcome:
        out.append(Answer(e.agent, transfer, False, state.outcome, "answered"))
    else:
        out.append(Receive(e.agent, about))
        return with_agent(r, known(r, e.agent))
    return r


def chunk(r: Round, e: on.ChunkCame, out: list[Action]) -> Round:
    r, state = with_agent(r, known(r, e.key.agent)), r.tasks.get(e.key)
    return (
        put(r, replace(state, moved=r.now, sent=r.now)) if state is not None and state.open else r
    )


def update(r: Round, e: on.UpdateCame, out: list[Action]) -> Round:
    state = awaited(r, e.key, e.attempt)
    if state is None or not state.open:
        return r
    out.append(Answer(e.key.agent, e.transfer, True, ""))
    took = state.took(r.now)
    agent = known(r, e.key.agent)
    if e.key.work in agent.wasted:
        agent = replace(
            agent,
            wasted={work: wasted for work, wasted in agent.wasted.items() if work != e.key.work},
        )
    if state.seconds > 0 and not state.resumed:
        agent = replace(agent, pace={**agent.pace, e.key.work: took / state.seconds})
    if e.key.work == "train":
        agent = replace(agent, loss=e.loss)
    return put(
        with_agent(r, agent),
        replace(state, stage="whole", digest=e.digest, seconds=took, waiting=-1.0),
    )


def lose_update(r: Round, e: on.UpdateLost, out: list[Action]) -> Round:
    state = r.tasks[e.key]
    if r.phase is not None and r.phase.folding == e.key:
        r = replace(r, phase=replace(r.phase, folding=None))
    return put(r, state.reopened(r.now))


def refuse(r: Round, e: on.UpdateRefused, out: list[Action]) -> Round:
    state = awaited(r, e.key, e.attempt)
    if state is None or not state.open:
        return r
    out.append(Answer(e.key.agent, e.transfer, False, e.reason, e.kind))
    return put(
        with_agent(r, known(r, e.key.agent)),
        replace(state, stage="done", outcome=f"refused: {e.reason}"),
    )


def fail(r: Round, e: on.TaskFailed, out: list[Action]) -> Round:
    state = awaited(r, e.key, e.attempt)
    if state is None or not state.open:
        return r
    r = with_agent(r, known(r, e.key.agent))
    outcome = f"{'paused' if e.paused else 'failed'}: {e.reason}"
    out.append(Report(FailureReported(e.key.agent, e.key.submodel, outcome)))
    return put(r, replace(state, stage="done", outcome=outcome))


def folded(r: Round, e: on.UpdateFolded, out: list[Action]) -> Round:
    r = put(r, replace(r.tasks[e.key], stage="done", outcome="folded"))
    assert r.phase is not None
    phase = replace(r.phase, folding=None)
    r = replace(r, phase=phase)
    if not (r.rules.durable and phase.work == "train"):
        out.append(Forget(e.key))  # nobody will fold it again
        return r
    return replace(r, unkept=(*r.unkept, e.key))


def snapshot(r: Round, e: on.SnapshotTaken, out: list[Action]) -> Round:
    """What it holds need not stay in the spool. Where the disk did not take it, it is tried again
    after the next fold.
    """
    if e.written:
        out += [Forget(key) for key in e.keys]
        kept = frozenset(e.keys)
        r = replace(r, unkept=tuple(key for key in r.unkept if key not in kept), refused=0)
    else:
        r = replace(r, refused=len(r.unkept))
    if r.full:
        out.append(Relieve(e.written))
    return replace(r, saving=False, full=False)


def fill(r: Round, e: on.SpoolFilled, out: list[Action]) -> Round:
    return replace(r, full=True)
