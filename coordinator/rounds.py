"""The rounds of a run, read top-down: wait, select, assign, collect and fold, finish, evaluate, store, again.

conduct ── begin or resume
   └── advance ── training.begin ── training.train ── method.finish ── evaluate ── store.save
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from coordinator import training
from coordinator.agent import Agent
from coordinator.config import Config
from coordinator.control import Helm
from coordinator.counts import Counts, by_round
from coordinator.decisions import Verdict
from coordinator.defences import Defences
from coordinator.evaluation import Evaluator, without_statistics
from coordinator.fleet import Fleet
from coordinator.journal import Entry
from coordinator.observe.events import AgentsAwaited, PrivacySpent, Publish, RoundBegan, RoundEnded, RunPaused, timing
from coordinator.past import Past, spelled
from coordinator.records import Round, Score
from coordinator.scores import reached, unique
from coordinator.selection import generator
from coordinator.standing import Standing
from coordinator.store import Store
from coordinator.tables import Fleet as FleetSettings
from coordinator.weights import Shipment
from federated.buffered import buffered, touched
from federated.errors import FleetError
from federated.method import Method, State, configure
from models.submodel import Network, Submodel

__all__ = ["Result", "Run", "conduct", "wait_for"]

log = logging.getLogger(__name__)

PARTING = 10.0  # seconds that agents have to sign off when the run is over
PATIENCE = 6.0  # a round without a deadline lasts this many times what the slowest is predicted to need


@dataclass
class Run:
    """All that a run's rounds need.

    tensors: of the whole network before the first round. defences: against updates that lie, and what they tell. pinned: submodels fixed by
    configuration. patience: times the predicted seconds after which a round without a deadline closes. durable: whether a round under way survives
    this process. assigned: what each agent trained last. trained: all submodels of which an update of the agent was folded. standings: what rounds
    have shown of each. verdicts: of the present round, by agent. past: where late updates count, what they start from. counts: how often each
    submodel was trained so far.
    """

    config: Config
    method: Method
    network: Network
    menu: tuple[Submodel, ...]
    fleet: Fleet
    store: Store
    evaluator: Evaluator
    publish: Publish
    tensors: Mapping[str, Tensor]
    defences: Defences
    pinned: Callable[[str], Submodel | None] = lambda agent: None
    patience: float = PATIENCE
    durable: bool = True
    helm: Helm | None = None
    assigned: dict[str, Submodel] = field(default_factory=dict)
    trained: dict[str, set[Submodel]] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    past: Past | None = None
    counts: Counts = field(default_factory=Counts)


@dataclass(frozen=True)
class Result:
    """How a run ended. scores: of the last evaluated round; assigned: agent -> its last submodel; bytes: through the coordinator's link.

    epsilon: what a private run told of the device of which it told most; 0 of another run.
    """

    state: State
    scores: tuple[Score, ...]
    assigned: Mapping[str, Submodel]
    rounds: int
    seconds: float
    bytes_up: int
    bytes_down: int
    reached: bool
    epsilon: float


def conduct(run: Run) -> Result:
    """Runs until the rounds are done or the target is reached; goes on after the last stored round where there is one."""
    start = time.monotonic()
    state, scores = begin(run)
    target = run.config.target_accuracy
    while state.round < run.config.rounds and not reached(scores, run.menu, target):
        if exhausted := run.defences.exhausted:
            log.warning("the run ends after round %d: %s", state.round, exhausted)
            break
        state, scores = advance(run, state)
        if run.helm is not None:
            run.helm.between()
    history = run.store.history()
    run.fleet.inbox.forget("round-*")  # what came too late for the last round, or lies there of one that was stored just before somebody died
    run.fleet.dismiss("the run is over", PARTING if run.durable else 0.0)
    return Result(
        state,
        tuple(scores),
        dict(run.assigned),
        state.round,
        time.monotonic() - start,
        sum(up for *_, up, _ in history),
        sum(down for *_, down in history),
        reached(scores, run.menu, target),
        run.defences.epsilon,
    )


def begin(run: Run) -> tuple[State, Sequence[Score]]:
    """The state to start from: the last stored one, or the network initialised from the seed."""
    settings = configure(run.method, run.config.settings, seed=run.config.seed, rounds=run.config.rounds)
    state = run.method.start(run.tensors, run.menu, settings)
    if takes_late(run.method, run.config.fleet):
        run.past = Past(run.store, state, run.config.fleet.staleness)
        run.method = buffered(run.method, run.past.base)
    if run.config.private.noise:
        run.publish(PrivacySpent(run.defences.epsilon))  # also by earlier coordinators
    counted = by_round(run.store, run.method, settings, run.menu)
    run.counts = counted[max(counted)]
    last = run.store.last()
    if last is None:
        return state, ()
    log.info("going on after round %d", last.round)
    known = {submodel.name: submodel for submodel in run.menu}
    run.assigned.update({agent: known[name] for agent, name in run.store.assigned().items() if name in known})
    run.trained.update({agent: {known[name].plain for name in names if name in known} for agent, names in run.store.trained().items()})
    run.standings.update(run.store.ledger.standings())
    run.fleet.folded = run.store.folded()
    training.take_up(run)
    return replace(state, round=last.round, tensors=dict(last.tensors), fleet=dict(last.fleet)), run.counts.mark(last.scores)


def takes_late(method: Method, fleet: FleetSettings) -> bool:
    """Whether an update counts whose round is closed."""
    if fleet.late == "take" and fleet.mode == "sync" and "buffered" not in method.allows:
        log.warning("late updates are dropped, though late = 'take': method %s takes none: %s", method.name, method.forbids["buffered"])
    return "buffered" in method.allows and (fleet.late == "take" or fleet.mode == "buffered")


def advance(run: Run, state: State) -> tuple[State, Sequence[Score]]:
    """One round: from a stored state to the next stored state, through one that an earlier coordinator began where there is one."""
    number = state.round + 1
    left = run.store.journal.standstill(number)
    start, sent, got = time.monotonic(), run.fleet.link.sent_bytes, run.fleet.link.received_bytes
    round = training.resume(run, state, left) if left is not None else None
    if round is None:
        gather(run)
        start, sent, got = time.monotonic(), run.fleet.link.sent_bytes, run.fleet.link.received_bytes
        round = training.begin(run, state)
    if run.helm is not None:
        run.helm.within()
    state = round.state
    run.publish(RoundBegan(number, run.config.rounds, round.opened.chosen))
    total, entries, trained = training.train(run, round)
    if not total.seen:
        raise_if_hopeless(run, number, entries)
    with timing(run.publish, "finish"):
        after = without_statistics(run.method.finish(state, total, generator(run.config.seed, 3, number)))
    moved = touched(total, after.tensors) if run.past is not None else {}
    if not all(bool(value.isfinite().all()) for value in after.tensors.values()):
        log.error("round %d made weights that are not finite; the weights of before stay", number)
        after, moved = replace(without_statistics(state), round=number), {}
    run.defences.release(number, total)
    if run.config.private.noise:
        run.publish(PrivacySpent(run.defences.epsilon))
    state = after
    chosen = {task.agent: task.submodel for task in round.tasks} | trainees(run)
    with timing(run.publish, "evaluate"):
        state, evaluated = run.evaluator.evaluate(state, to_evaluate(run, chosen, number), chosen, run.assigned)
    run.counts = run.counts.after(Counter(entry.submodel for entry in entries if entry.outcome == "folded"))
    scores = run.counts.mark((*evaluated, *trained))
    late = [settled.task for settled in run.fleet.late.values()]
    run.fleet.shelf.clear(keep={Shipment.version(state), *(task.version for task in late)})
    done = Round(
        number,
        time.monotonic() - start,
        state.tensors,
        dict(round.opened.fleet),
        entries,
        scores,
        run.fleet.link.received_bytes - got,
        run.fleet.link.sent_bytes - sent,
        dict(run.standings),
        late,
        spelled(moved) if run.past is not None else "",
    )
    with timing(run.publish, "save"):
        run.store.save(done)
    if run.past is not None:
        run.past.add(number, moved)
    run.fleet.inbox.forget("round-*", keep=run.fleet.late)
    run.publish(RoundEnded(done))
    return state, scores


def trainees(run: Run) -> dict[str, Submodel]:
    """Who was asked in the round that is over, by agent."""
    return {settled.task.agent: settled.task.submodel for settled in run.fleet.collection.entries.values()}


def gather(run: Run) -> None:
    """Waits while people want no round to begin, and until there are enough agents: both are so when it returns. Raises FleetError."""
    while True:
        hold(run)
        wait_for(run.fleet, run.config.fleet.min_agents, run.config.fleet.wait, run.publish)
        if run.helm is None or not run.helm.paused:  # nobody asked for a pause while agents were awaited
            return


def hold(run: Run) -> None:
    """Waits while people want no round to begin; the agents stay, and are heard."""
    while run.helm is not None and run.helm.paused:
        run.publish(RunPaused())
        run.fleet.turn(0.2)


def to_evaluate(run: Run, chosen: Mapping[str, Submodel], number: int) -> list[Submodel]:
    """The whole menu every so many rounds and at the end; in between, what was trained and the largest."""
    if number % run.config.evaluate.every == 0 or number >= run.config.rounds:
        return unique(run.menu)
    if not run.config.evaluate.between:
        return []
    used = {submodel.plain for submodel in chosen.values()}
    return [submodel for submodel in unique(run.menu) if submodel in used or submodel == run.menu[-1].plain]


def wait_for(fleet: Fleet, wanted: int, limit: float, publish: Publish) -> list[Agent]:
    """The agents that are ready, as soon as there are `wanted`. Raises FleetError when they do not come within `limit` seconds (0: ever)."""
    start = time.monotonic()
    while len(ready := fleet.ready()) < wanted:
        waited = time.monotonic() - start
        if limit and waited > limit:
            raise FleetError(f"{len(ready)} of {wanted} agents after {waited:.0f} s: {refusals(fleet) or 'no others came'}")
        publish(AgentsAwaited(len(ready), wanted))
        fleet.turn(0.2)
    return ready


def refusals(fleet: Fleet) -> str:
    """Why those who came are not there."""
    return "; ".join(f"{a.name} {'was ' if a.refused else ''}{a.absence}" for a in fleet.agents.values() if a.absence)


def raise_if_hopeless(run: Run, number: int, entries: Sequence[Entry]) -> None:
    """A round without any update leaves the state as it is; with nobody left who could bring one, the run ends."""
    reasons = "; ".join(f"{e.agent}: {e.outcome}" for e in entries)
    log.warning("no update in this round: %s", reasons)
    if entries and all(e.outcome.startswith("failed") and e.submodel == run.menu[0].unowned.name for e in entries):
        run.store.journal.drop(number)
        raise FleetError(f"no agent can train even the smallest submodel: {reasons}")
