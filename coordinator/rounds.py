"""The rounds of a run, read top-down: wait, select, assign, collect and fold, finish, evaluate, store, again.

conduct ── begin or resume
   └── advance ── assign ── choose ── train ── method.finish ── evaluate ── store.save
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from coordinator import assignment, lessons
from coordinator.acceptance import check_training, expected
from coordinator.agent import Agent
from coordinator.allotment import assign, choose, record
from coordinator.config import Config
from coordinator.decisions import Verdict
from coordinator.evaluation import ENDLESS, Evaluator, without_statistics
from coordinator.fleet import Fleet
from coordinator.progress import Watch
from coordinator.scores import of_training, overall
from coordinator.selection import generator
from coordinator.standing import Standing
from coordinator.store import Entry, Round, Score, Store
from coordinator.weights import Shipment, received
from federated.aggregate import Total, fold
from federated.errors import FleetError
from federated.local import Tallies
from federated.method import Method, State, configure
from federated.task import Recipe, Task, Update
from models.submodel import Network, Submodel

__all__ = ["Result", "Run", "conduct", "wait_for"]

log = logging.getLogger(__name__)

GRACE = 60.0  # least seconds of a round without a deadline
PATIENCE = 6.0  # and otherwise this many times what the slowest is predicted to need


@dataclass
class Run:
    """All that a run's rounds need.

    tensors: of the whole network before the first round. pinned: submodels fixed by configuration. patience: times the predicted seconds
    after which a round without a deadline closes. assigned: what each agent trained last. standings: what rounds have shown of each.
    verdicts: of the present round, by agent.
    """

    config: Config
    method: Method
    network: Network
    menu: tuple[Submodel, ...]
    fleet: Fleet
    store: Store
    evaluator: Evaluator
    watch: Watch
    tensors: Mapping[str, Tensor]
    pinned: Callable[[str], Submodel | None] = lambda agent: None
    patience: float = PATIENCE
    assigned: dict[str, Submodel] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """How a run ended. scores: of the last evaluated round; assigned: agent -> its last submodel; bytes: through the coordinator's link."""

    state: State
    scores: tuple[Score, ...]
    assigned: Mapping[str, Submodel]
    rounds: int
    seconds: float
    bytes_up: int
    bytes_down: int
    reached: bool


def conduct(run: Run) -> Result:
    """Runs until the rounds are done or the target is reached; goes on after the last stored round where there is one."""
    start = time.monotonic()
    state, scores = begin(run)
    target = run.config.target_accuracy
    while state.round < run.config.rounds and not reached(scores, run.menu, target):
        state, scores = advance(run, state)
    history = run.store.history()
    run.fleet.dismiss("the run is over")
    return Result(
        state,
        tuple(scores),
        dict(run.assigned),
        state.round,
        time.monotonic() - start,
        sum(up for *_, up, _ in history),
        sum(down for *_, down in history),
        reached(scores, run.menu, target),
    )


def begin(run: Run) -> tuple[State, Sequence[Score]]:
    """The state to start from: the last stored one, or the network initialised from the seed."""
    settings = configure(run.method, run.config.settings, seed=run.config.seed, rounds=run.config.rounds)
    state = run.method.start(run.tensors, run.menu, settings)
    last = run.store.last()
    if last is None:
        return state, ()
    log.info("going on after round %d", last.round)
    known = {submodel.name: submodel for submodel in run.menu}
    run.assigned.update({agent: known[name] for agent, name in run.store.assigned().items() if name in known})
    run.standings.update(run.store.ledger.standings())
    run.fleet.folded = run.store.folded()
    return replace(state, round=last.round, tensors=dict(last.tensors), fleet=dict(last.fleet)), last.scores


def reached(scores: Sequence[Score], menu: Sequence[Submodel], target: float) -> bool:
    """Whether the largest submodel that was evaluated has the wanted accuracy, on the coordinator's data where it has some."""
    if not target or not scores:
        return False
    by_name = {s.submodel: s.accuracy for s in overall(scores)}
    largest = [by_name[m.name] for m in unique(menu) if m.name in by_name]
    return bool(largest) and largest[-1] >= target


def advance(run: Run, state: State) -> tuple[State, Sequence[Score]]:
    """One round: from a stored state to the next stored state."""
    number = state.round + 1
    agents = wait_for(run.fleet, run.config.fleet.min_agents, run.config.fleet.wait, run.watch)
    start, sent, got = time.monotonic(), run.fleet.link.sent_bytes, run.fleet.link.received_bytes
    state = replace(state, agents={a.name: a.profile.survey for a in agents if a.profile is not None})
    able = assign(run, state, agents, number)
    chosen = choose(run, state, able, number)
    record(run, number, chosen)
    counts = {s: sum(c == s for c in able.values()) for s in dict.fromkeys(able.values())}
    state = replace(state, fleet=counts)
    run.watch.began(number, run.config.rounds, chosen)
    total, entries, trained = train(run, state, chosen, number)
    if not total.seen:
        raise_if_hopeless(run, entries)
    after = without_statistics(run.method.finish(state, total, generator(run.config.seed, 3, number)))
    if not all(bool(value.isfinite().all()) for value in after.tensors.values()):
        log.error("round %d made weights that are not finite; the weights of before stay", number)
        after = replace(without_statistics(state), round=number)
    state = after
    state, evaluated = run.evaluator.evaluate(state, to_evaluate(run, chosen, number), chosen, run.assigned)
    scores = (*evaluated, *trained)
    run.fleet.shelf.clear(keep=Shipment.version(state))
    done = Round(
        number,
        time.monotonic() - start,
        state.tensors,
        counts,
        entries,
        scores,
        run.fleet.link.received_bytes - got,
        run.fleet.link.sent_bytes - sent,
        dict(run.standings),
    )
    run.store.save(done)
    run.watch.ended(done)
    return state, scores


def to_evaluate(run: Run, chosen: Mapping[str, Submodel], number: int) -> list[Submodel]:
    """The whole menu every so many rounds and at the end; in between, what was trained and the largest."""
    if number % run.config.evaluate.every == 0 or number >= run.config.rounds:
        return unique(run.menu)
    if not run.config.evaluate.between:
        return []
    used = {submodel.plain for submodel in chosen.values()}
    return [submodel for submodel in unique(run.menu) if submodel in used or submodel == run.menu[-1].plain]


def unique(menu: Sequence[Submodel]) -> list[Submodel]:
    """Each network of a menu once: branches are merged before anyone evaluates."""
    return list(dict.fromkeys(submodel.plain for submodel in menu))


def wait_for(fleet: Fleet, wanted: int, limit: float, watch: Watch) -> list[Agent]:
    """The agents that are ready, as soon as there are `wanted`. Raises FleetError when they do not come within `limit` seconds (0: ever)."""
    start = time.monotonic()
    while len(ready := fleet.ready()) < wanted:
        waited = time.monotonic() - start
        if limit and waited > limit:
            raise FleetError(f"{len(ready)} of {wanted} agents after {waited:.0f} s: {refusals(fleet) or 'no others came'}")
        watch.waiting(len(ready), wanted)
        fleet.turn(0.2)
    return ready


def norms(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """L2 norm of each tensor."""
    return {name: float(value.double().norm()) for name, value in tensors.items()}


def refusals(fleet: Fleet) -> str:
    """Why those who came are not there."""
    return "; ".join(f"{a.name} {'was ' if a.refused else ''}{a.absence}" for a in fleet.agents.values() if a.absence)


def train(run: Run, state: State, chosen: Mapping[str, Submodel], number: int) -> tuple[Total, list[Entry], list[Score]]:
    """Sends the tasks, folds the updates as they can be folded, and says what became of each; the devices' own scores where they were asked for."""
    shipment = Shipment(run.fleet, state, run.method)
    recipes = {submodel: asked(run.method.recipe(state, submodel), run.config) for submodel in set(chosen.values())}
    limit = closing(run, chosen)
    tasks = [
        shipment.task(agent, "train", submodel, recipes[submodel], limit, round=number, run=run.config.name) for agent, submodel in chosen.items()
    ]
    total, entries, found = Total(), {}, list[tuple[Submodel, str, Tallies]]()
    sent = {submodel: norms(run.method.dispatch(state, run.method.place(state, submodel))) for submodel in recipes}
    shapes = {submodel: expected(run.method.place(state, submodel)) for submodel in recipes}

    def check(task: Task, update: Update) -> None:
        profile = run.fleet.agents[task.agent].profile
        examples = profile.data.examples if profile is not None else 0
        elapsed = run.fleet.clock() - run.fleet.collection.entries[task.agent, task.submodel.name].started
        check_training(update, shapes[task.submodel], sent[task.submodel], examples, assignment.planned(task.recipe, examples), elapsed)

    quorum = max(1, math.ceil(round(run.config.fleet.quorum * len(tasks), 9)))
    for settled, update in run.fleet.collect(tasks, quorum=quorum, deadline=limit, check=check, size=shipment.limit):
        plan = run.method.place(state, update.submodel)
        fold(total, run.method.parts(state, plan, received(update)), (update.agent, update.attempt))
        entries[update.agent] = Entry(
            update.agent,
            update.submodel.unowned.name,
            "folded",
            update.samples,
            update.steps,
            float(update.notes.get("loss", math.nan)),
            settled.seconds,
            lessons.number(update.notes, "step"),
            int(lessons.number(update.notes, "peak")),
        )
        profile = run.fleet.agents[update.agent].profile
        if profile is not None:
            run.standings[update.agent] = lessons.trained(run.standings[update.agent], run.verdicts[update.agent], profile, settled, update)
        run.fleet.folded[update.agent] = number
        found.append((update.submodel.plain, update.agent, update.notes.get("tallies", {})))
        run.watch.folded(entries[update.agent])
    settled_all = list(run.fleet.collection.entries.values())
    for settled in settled_all:
        if (agent := settled.task.agent) not in entries:
            # Simulated devices claim speeds: the seconds of this machine say nothing of them.
            elapsed = run.fleet.clock() - settled.started if run.patience < ENDLESS else 0.0
            run.standings[agent] = lessons.missed(run.standings[agent], run.verdicts[agent], settled, elapsed)
    others = [Entry(s.task.agent, s.task.submodel.unowned.name, s.outcome) for s in settled_all if s.task.agent not in entries]
    return total, sorted([*entries.values(), *others], key=lambda e: e.agent), of_training(found)


def closing(run: Run, chosen: Mapping[str, Submodel]) -> float:
    """Seconds after which a round closes: the configured deadline, or generously more than the slowest was predicted to need."""
    if run.config.fleet.deadline and run.patience < ENDLESS:
        return run.config.fleet.deadline
    return max(GRACE, run.patience * max(run.verdicts[agent].decision.seconds for agent in chosen))


def asked(recipe: Recipe, config: Config) -> Recipe:
    """The method's recipe with what the run adds: which scores devices take."""
    return replace(recipe, scores=config.evaluate.local, per_class=config.evaluate.per_class)


def raise_if_hopeless(run: Run, entries: Sequence[Entry]) -> None:
    """A round without any update leaves the state as it is; with nobody left who could bring one, the run ends."""
    reasons = "; ".join(f"{e.agent}: {e.outcome}" for e in entries)
    log.warning("no update in this round: %s", reasons)
    if all(e.outcome.startswith("failed") and e.submodel == run.menu[0].unowned.name for e in entries):
        raise FleetError(f"no agent can train even the smallest submodel: {reasons}")
