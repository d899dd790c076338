"""Extreme messages of agents are either refused with a reason or survive everything that a run does
with them: aggregation, standings, journal, database and reports.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest

from coordinator.assign.agent_track_record import Standing, reset_timings
from coordinator.assign.decisions import Candidate, decide
from coordinator.assign.majority_network import (
    build_network,
    explain_unit_mismatch,
    find_majority,
)
from coordinator.fleet.submodel_shipment import to_torch
from coordinator.fleet.update_inbox import Inbox
from coordinator.observe import events
from coordinator.observe.event_readers.log_output import write_log
from coordinator.observe.event_readers.prometheus_metrics import count_metrics
from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.event_readers.terminal_output import LinePrinter
from coordinator.observe.fleet_scores import score_devices, score_training
from coordinator.observe.round_records import Folded
from coordinator.observe.round_records import RoundRecord as Finished
from coordinator.phases.evaluation import Calibration, Scoring
from coordinator.phases.task_outcomes import describe_fold, learn_from_update
from coordinator.round.round_events import ProfileCame, RoundEvent
from coordinator.round.round_state import Round, TaskState
from coordinator.settings.config import Config, load
from coordinator.store.journal import Base, pack, unpack
from coordinator.store.run_store import Store
from coordinator.trust.message_checks import (
    check_match,
    check_profile,
    check_training,
    compute_shapes,
)
from coordinator.trust.tensor_checks import check_weights
from federated.engine.aggregate import Total, dump, fold
from federated.engine.aggregate import load as load_total
from federated.errors import WireError
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.safe_text import MAX_TEXT
from federated.task import LONGEST, Profile, Recipe, Task, Update
from federated.training.score_sums import fields
from federated.wire import envelope, tensors
from federated.wire.codecs.raw import RAW
from models.menu import menu
from models.named_network import network
from models.submodel import Moments
from models.submodel_building import initial, statistics
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.scripted_agent import PROFILE
from tests.support.scripted_coordinator import CARD, DATA, SMALL

EXTREMES: list[Any] = [
    *(0, 1, -1, 2, 2**40 - 1, 2**48, 2**53 - 1, 2**60 - 1, 2**62, 2**63, 2**64 - 1, True, None),
    *(
        0.0,
        -0.0,
        0.5,
        5e-324,
        1e-310,
        1e-30,
        1e-12,
        1e9,
        1e18,
        1e19,
        1e38,
        1e100,
        -1e100,
        1e200,
        -1e200,
        1e290,
        1.7e308,
        math.inf,
        -math.inf,
        math.nan,
    ),
    *("", "x", "x" * 3000, b"x", [], [1], {}, {"a": 1}),
]
VAST = replace(DATA, examples=2**40 - 1, held_out=2**40 - 1)
CHANCE = 0.08  # of a field being extreme: several are in most messages, and none in some
NETWORKS = {
    "class": network("preresnet", (1, 8, 8), 10),
    "value": network(
        "mlp-small", (1, 8, 8), 2, Moments(shift=(0, 1), scale=(1, 1e18)), target="value"
    ),
}
MENU = menu(CARD.network, (0.5, 1.0), (2,)) if CARD.network is not None else ()
CONFIG = load(
    None,
    {},
    [("name", "r"), ("data.name", "agents"), ("model.name", "mlp-small"), ("method.name", "fedfa")],
)


class ExtremeAgent:
    """Draws messages in which some fields are extreme."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fate = Counter[str]()

    def twist(self, value: Any, chance: float = CHANCE) -> Any:
        """Return the value with extremes in some places, at any depth."""
        if self.rng.random() < chance:
            return self.rng.choice(EXTREMES)
        if isinstance(value, dict):
            return {key: self.twist(inner, chance) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.twist(inner, chance) for inner in value]
        return value

    def refused(self, what: str, error: WireError) -> None:
        assert 0 < len(str(error)) <= MAX_TEXT
        self.fate[f"{what} refused"] += 1

    def taken(self, what: str) -> None:
        self.fate[f"{what} taken"] += 1

    # ---- messages --------------------------------------------------------------------------------

    def profile(self) -> Profile | None:
        """Return a profile that was accepted."""
        body = msgpack.unpackb(envelope.encode(PROFILE))["body"]
        body["survey"] = {"zico": {SMALL.name: 1.0}, "histogram": [0.1] * 10}
        body["timings"][0]["seconds"] = self.rng.choice([1e-12, 1e-9, 0.01, 1.0, 1e9])
        body["data"]["examples"] = self.rng.choice([1, 100, 2**40 - 1])
        for name in ("data", "board", "survey", *(["timings"] if self.rng.random() < 0.1 else [])):
            body[name] = self.twist(body[name], CHANCE / 2)
        body |= {
            name: self.twist(body[name])
            for name in ("host", "cpus", "memory", "uplink", "chunk", "labels")
        }
        try:
            profile = envelope.decode(
                msgpack.packb({"v": envelope.PROTOCOL, "kind": "profile", "body": body})
            )
            assert isinstance(profile, Profile)
            check_profile(profile, CARD)
        except WireError as error:
            self.refused("profile", error)
            return None
        self.taken("profile")
        return profile

    def tally(self, kind: str) -> dict[str, Any]:
        wanted = fields(NETWORKS[kind], per_class=self.rng.random() < 0.5)
        return {
            name: [self.twist(1, CHANCE / 4) for _ in range(count)]
            for name, count in wanted.items()
        }

    def notes(self, kind: str) -> dict[str, Any]:
        tallies = {"before": self.tally(kind), "after": self.tally(kind)}
        honest = {
            "loss": 1.0,
            "labels": [0, 9] if kind == "class" else [0],
            "seconds": 1.0,
            "step": 0.01,
            "peak": 10**6,
            "tallies": tallies,
            "more": 1,
        }
        comparable = {
            name: value
            for name, value in honest.items()
            if name == "loss" or self.rng.random() < 0.8
        }
        return {
            name: value if name == "tallies" else self.twist(value)
            for name, value in comparable.items()
        }


def send_through(meta: dict[str, Any], values: dict[str, np.ndarray], folder: Path) -> Update:
    """Encode an update and read it as the coordinator does. Raises WireError."""
    path = folder / "update"
    path.write_bytes(tensors.encode(meta, values))
    return Inbox(folder / "spool", 8).read(path, RAW, 1 << 20, {})


def meta_of(task: Task, **changed: Any) -> dict[str, Any]:
    made = Update(
        "r", task.round, task.attempt, task.agent, task.work, task.submodel, task.version, 10, 5
    )
    return {**msgspec.to_builtins(made), **changed}


def judge_profile(profile: Profile, standing: Standing) -> Any:
    recipe = Recipe(epochs=5)
    return decide(
        MENU,
        recipe,
        [Candidate("a", profile, standing)],
        Config(),
        lambda index, candidate, can: can[-1],
    )[0]


# ---- one message after the other -----------------------------------------------------------------


def test_an_accepted_profile_is_assigned_stored_and_read_again(tmp_path: Path) -> None:
    liar, store = ExtremeAgent(0), Store.create(tmp_path, "r")
    others = {"b": DATA, "c": DATA}
    for round in range(1, 700):
        profile = liar.profile()
        if profile is None:
            continue
        standing = reset_timings(Standing(), profile)
        verdict = judge_profile(profile, standing)
        assert all(
            math.isfinite(offer.seconds) and math.isfinite(offer.step) for offer in verdict.offers
        )
        store.agents.write_decisions(round, {"a": verdict.decision}, {"a": profile})
        store.agents.write_standings({"a": standing})
        assert store.agents.read_profiles()["a"] == profile
        assert store.agents.read_standings()["a"] == standing
        event = ProfileCame(0.0, "a", profile)
        assert unpack(pack(event), RoundEvent) == event
        agreed = find_majority({"a": profile.data, **others})
        assert agreed.keys() >= others.keys()
        made = build_network(CONFIG, list(agreed.values()))
        assert not explain_unit_mismatch(DATA, made)
        assert made.outputs <= 20
    store.close()
    assert liar.fate["profile taken"] > 100
    assert liar.fate["profile refused"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedfa", "fednova", "heterofl"])
def test_an_accepted_update_is_folded_stored_and_reported(name: str, tmp_path: Path) -> None:
    """Run with all readers; one agent's standing is carried from update to update."""
    liar, store, chosen = ExtremeAgent(1), Store.create(tmp_path, "r"), find_method(name)
    settings = configure(
        chosen, {"widths": [0.5, 1.0], "label_split_head": True} if name == "fedfa" else {}
    )
    state = chosen.start(
        initial(NETWORKS["class"], 0, chosen.features),
        chosen.menu(NETWORKS["class"], settings),
        settings,
    )
    submodel = chosen.menu(NETWORKS["class"], settings)[0]
    plan = chosen.place(state, submodel)
    shapes = compute_shapes(plan)
    norms = {home: float(value.norm()) for home, value in chosen.dispatch(state, plan).items()}
    task = Task("r", 1, 1, "a", "train", submodel, "r0", "0" * 64, 1000, Recipe(), 60.0)
    profile, standings = PROFILE, {"a": Standing()}
    shown = publish_to_readers(tmp_path)
    for number in range(1, 200):
        profile = liar.profile() or profile
        standings["a"] = reset_timings(standings["a"], profile)
        verdict = judge_profile(profile, standings["a"])
        value = liar.rng.choice([0.0, 1e-45, 2e-30, 1e-28, 1e-20, 0.1, 100.0, -100.0])
        examples, elapsed = profile.data.examples, liar.rng.choice([0.01, 10.0, 1e5, math.inf])
        counts = {
            "samples": liar.rng.choice([1, examples, liar.twist(10)]),
            "steps": liar.rng.choice([1, 100, liar.twist(5)]),
        }
        try:
            meta = meta_of(task, notes=liar.notes("class"), **counts)
            update = send_through(
                meta,
                {home: np.full(shape, value, np.float32) for home, shape in shapes.items()},
                tmp_path,
            )
            check_match(task, update)
            check_weights(update, shapes, norms)
            check_training(update, examples, 2**40 // 32, elapsed)
        except WireError as error:
            liar.refused("update", error)
            continue
        liar.taken("update")
        total = Total()
        assert fold(total, chosen.parts(state, plan, to_torch(update)), ("a", number))
        text = dump(total)
        load_total(*text)
        finished = chosen.finish(state, total, np.random.default_rng(0))
        assert all(bool(tensor.isfinite().all()) for tensor in finished.tensors.values())
        folding = TaskState(task, 0, 0.0, min(elapsed, 1e9), "folding", digest="0" * 64)
        standing = learn_from_update(standings["a"], verdict, profile, folding, update)
        one = Folded(
            describe_fold(folding, update, 0),
            submodel.plain,
            standing,
            dict(update.notes.get("tallies", {})),
        )
        assert 0 <= one.entry.step <= LONGEST
        standings["a"] = one.standing
        base = Base("", Round(), "total", (one,))
        assert comparable(unpack(pack(base), Base)) == comparable(base)
        scores = tuple(
            score_training(
                [(one.submodel, "a", one.tallies), (one.submodel, "b", one.tallies)]
                if one.tallies
                else []
            )
        )
        done = Finished(number, 1.0, {}, {submodel: 1}, (one.entry,), scores, standings=standings)
        store.save(done)
        assert store.agents.read_standings()["a"] == one.standing
        assert (store.read_entries(number)[0].steps, len(store.read_scores(number))) == (
            update.steps,
            len(scores),
        )
        for event in (events.UpdateFolded(one.entry), events.RoundEnded(done)):
            shown(event)
    store.close()
    assert liar.fate["update taken"] > 40
    assert liar.fate["update refused"] > 40


def comparable(base: Base) -> list[Folded]:
    """Return the updates of a segment's base with NaN as text, so that they compare equal."""
    return [replace(one, entry=replace(one.entry, loss=str(one.entry.loss))) for one in base.folded]  # type: ignore[arg-type]


def publish_to_readers(folder: Path) -> events.Publish:
    """Return a publisher to all readers of a run that need no fleet. They write JSON."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry, lines = CollectorRegistry(), list[str]()
    context = ReaderContext(
        folder, Config(), lambda: 0.0, registry, log_fields={"run": "r", "round": 0}
    )
    readers = events.publish_to(
        write_log(context), count_metrics(context), LinePrinter(lines.append).read
    )

    def read(event: events.Event) -> None:
        readers(event)
        generate_latest(registry)
        assert all(len(line) < 1000 for line in lines)
        lines.clear()

    return read


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["class", "value"])
def test_accepted_scores_are_summed_with_those_of_many_others_and_stored(
    kind: str, tmp_path: Path
) -> None:
    liar, store, net = ExtremeAgent(2), Store.create(tmp_path, "r"), NETWORKS[kind]
    submodel = menu(net, (0.5,), (2,) if kind == "class" else (1,))[0]
    task = Task("r", 1, 1, "a", "evaluate", submodel, "r0", "0" * 64, 1000, Recipe(), 60.0)
    for number in range(1, 120):
        meta = meta_of(
            task,
            samples=liar.twist(10),
            notes={"tallies": {"all": liar.tally(kind), "exit0": liar.tally(kind)}},
        )
        scoring = Scoring(lambda name: VAST)
        try:
            update = send_through(meta, {}, tmp_path)
            scoring.check(task, update, 1.0)
        except WireError as error:
            liar.refused("scores", error)
            continue
        liar.taken("scores")
        scoring.fold(TaskState(task, 0, 0.0), update)
        scores = score_devices([(submodel, f"a{i}", scoring.found[0][2]) for i in range(1100)])
        assert all(math.isfinite(score.accuracy) and math.isfinite(score.loss) for score in scores)
        store.save(Finished(number, 1.0, {}, {}, scores=scores[:1]))
        assert [
            json.loads(json.dumps(score.metrics, allow_nan=False))
            for score in store.read_scores(number)
        ] == [scores[0].metrics]
    store.close()
    assert liar.fate["scores taken"] > 15
    assert liar.fate["scores refused"] > 15


@pytest.mark.parametrize("robust", [False, True])
def test_accepted_statistics_have_finite_sums(robust: bool, tmp_path: Path) -> None:
    liar = ExtremeAgent(3)
    wanted = statistics(SMALL)
    task = Task("r", 1, 1, "a", "calibrate", SMALL, "r0", "0" * 64, 1000, Recipe(), 60.0)
    calibration = Calibration(lambda name: VAST, robust)
    for index in range(300):
        value = liar.rng.choice([0.0, 1e-45, 1.0, 1e18, 2e18, 3e38, -1.0])
        agent = replace(task, agent=f"a{index}")
        meta = meta_of(
            agent,
            samples=liar.rng.choice([10, 2**40 - 1, 2**40]),
            notes={"batches": liar.rng.choice([1, 2**40 - 1, liar.twist(1)])},
        )
        try:
            update = send_through(
                meta,
                {name: np.full(shape, value, np.float32) for name, shape in wanted.items()},
                tmp_path,
            )
            calibration.check(agent, update, 1.0)
        except WireError as error:
            liar.refused("statistics", error)
            continue
        liar.taken("statistics")
        calibration.fold(TaskState(agent, 0, 0.0), update)
    assert all(bool(value.isfinite().all()) for value in calibration.statistics().values())
    assert liar.fate["statistics taken"] > 30
    assert liar.fate["statistics refused"] > 30


# ---- a whole run ---------------------------------------------------------------------------------


def test_a_run_with_two_extreme_agents_ends_and_resumes(tmp_path: Path) -> None:
    """One agent is honest. The updates of the others have extreme notes, some of which are
    accepted.
    """
    liars = {"a1": ExtremeAgent(4), "a2": ExtremeAgent(5)}

    def lie(update: Update) -> Update:
        liar = liars[update.agent]
        notes = {**update.notes, "seconds": 0.001, "step": 1e-5, "peak": 2**60 - 1}
        if liar.rng.random() < 0.5:
            notes["tallies"] = {
                view: {name: liar.twist(values, 0.02) for name, values in sums.items()}
                for view, sums in notes.get("tallies", {}).items()
            }
        return replace(
            update,
            notes={
                name: value if name == "tallies" else liar.twist(value, 0.1)
                for name, value in notes.items()
            },
        )

    def members() -> list[Member]:
        speeds = {"a1": 1e-9, "a2": 1e6}
        return [
            Member("a0", digits(0, 3)),
            *(
                Member(name, digits(i, 3), speed=speeds[name], change=lie)
                for i, name in enumerate(liars, 1)
            ),
        ]

    settings = {
        "model.name": "mlp-small",
        "method.widths": [0.25, 0.5],
        "method.depths": [1],
        "train.epochs": 1,
        "train.steps": 2,
        "evaluate.examples": 20,
        "evaluate.local": True,
        "evaluate.per_class": True,
    }
    for rounds in (6, 8):
        done = federate(tmp_path, members(), {**settings, "rounds": rounds}, resume=rounds > 6)
        assert done.result.rounds == rounds
    store = Store.open(tmp_path / "runs", RUN, read_only=True)
    fates = Counter(
        entry.outcome.partition(":")[0]
        for number in range(1, 9)
        for entry in store.read_entries(number)
        if entry.agent != "a0"
    )
    store.agents.read_standings()
    store.close()
    assert fates["folded"] > 2
    assert fates["refused"] > 2
