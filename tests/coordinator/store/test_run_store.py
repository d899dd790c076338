"""A run's folder: rounds are written atomically, by one coordinator at a time."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coordinator.assign.agent_track_record import Setback, Standing
from coordinator.assign.decision_record import Decision
from coordinator.database_row_digests import digest_rows, find_damage
from coordinator.observe.round_records import Entry, RoundRecord, Score
from coordinator.round.round_events import Ticked
from coordinator.round.round_state import Round
from coordinator.store import database as databases
from coordinator.store.database import Facts
from coordinator.store.journal import Base
from coordinator.store.run_folders import find_latest_run, list_runs
from coordinator.store.run_store import Store
from coordinator.trust.norm_and_privacy_tables import ChangeNorm
from federated.engine.aggregate import Total
from federated.errors import StoreError, Superseded
from federated.task import Card, Profile, Timing
from models.submodel import Network, Submodel

NETWORK = Network("preresnet", "small", (1, 8, 8), 10)
SUBMODEL = Submodel(NETWORK, 0.5, ((1, 0), (1, 1)))


def done(number: int) -> RoundRecord:
    tensors = {"w": torch.arange(6.0).reshape(2, 3) + number, "stats/w0.5/x": torch.ones(2)}
    entries = [Entry("a", "w0.5-d1.2", "folded", 10, 2, 0.5, 1.0), Entry("b", "w0.5-d1.2", "late")]
    scores = [Score("w0.5-d1.2", "central", 0.25, 1.5, 8)]
    return RoundRecord(number, 2.0, tensors, {SUBMODEL: 2}, entries, scores, 100, 200)


def test_a_round_round_trips(tmp_path: Path) -> None:
    store = Store.create(tmp_path, "r")
    store.write_facts(Facts({"rounds": 3}, NETWORK, (SUBMODEL,)))
    for number in (1, 2, 3):
        store.save(done(number))
    store.close()
    store = Store.open(tmp_path, "r")
    last = store.read_last()
    assert last is not None
    assert last.round == 3
    assert all(torch.equal(last.tensors[k], v) for k, v in done(3).tensors.items())
    assert last.fleet == {SUBMODEL: 2}
    assert store.read_scores(3) == list(done(3).scores)
    assert [e.outcome for e in store.read_entries(2)] == ["folded", "late"]
    assert [number for number, *_ in store.read_history()] == [1, 2, 3]
    facts = store.read_facts()
    assert (facts.config, facts.network, facts.menu) == ({"rounds": 3}, NETWORK, (SUBMODEL,))
    assert sorted(p.name for p in (tmp_path / "r").glob("round-*")) == [
        "round-000002.safetensors",
        "round-000003.safetensors",
    ]
    store.close()


def test_a_round_is_written_once(tmp_path: Path) -> None:
    store = Store.create(tmp_path, "r")
    store.save(done(1))
    with pytest.raises(StoreError, match="round 1"):
        store.save(done(1))
    assert len(store.read_history()) == 1
    store.close()


def test_a_checkpoint_without_its_row_does_not_count(tmp_path: Path) -> None:
    """A coordinator that died between the file and the transaction resumes at the round before."""
    store = Store.create(tmp_path, "r")
    store.save(done(1))
    (tmp_path / "r" / "round-000002.safetensors").write_bytes(b"half")
    last = store.read_last()
    assert last is not None
    assert last.round == 1
    store.save(done(2))
    last = store.read_last()
    assert last is not None
    assert last.round == 2
    store.close()


def test_two_coordinators_cannot_hold_one_run(tmp_path: Path) -> None:
    store = Store.create(tmp_path, "r")
    with pytest.raises(StoreError, match="another coordinator holds"):
        Store.open(tmp_path, "r")
    reader = Store.open(tmp_path, "r", read_only=True)
    reader.close()
    store.close()
    Store.open(tmp_path, "r").close()


def test_missing_and_foreign_runs_are_errors(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run in"):
        find_latest_run(tmp_path)
    Store.create(tmp_path, "r").close()
    with pytest.raises(StoreError, match="run 'r' exists"):
        Store.create(tmp_path, "r")
    with pytest.raises(StoreError, match=r"no run 's' in .*: r$"):
        Store.open(tmp_path, "s")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "run.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="not a run's database"):
        Store.open(tmp_path, "t")
    assert list_runs(tmp_path) == ["r", "t"]


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    store = Store.create(tmp_path, "r")
    store.save(done(1))
    (tmp_path / "r" / "round-000001.safetensors").write_bytes(b"damaged")
    with pytest.raises(StoreError, match=r"checkpoint .*round-000001.safetensors is damaged"):
        store.read_last()
    store.close()


def test_profiles_decisions_and_standings_round_trip(tmp_path: Path) -> None:
    """A round that begins again replaces its decisions; standings are written together with the
    round.
    """
    card = Card("d", (1, 8, 8), "uint8", 10, 100, 20, (5.0,), (6.0,))
    profile = Profile(
        "a",
        "h",
        "s",
        0.5,
        10**9,
        1e6,
        2**18,
        "torch",
        card,
        (Timing(SUBMODEL, 32, 0.5),),
        labels=("eu",),
    )
    first, second = (
        Decision("a", "w0.5-d1.2", True, "first", 0.1, 1.0, 7),
        Decision("a", reason="not selected: not here"),
    )
    standing = Standing(
        "b", 2, 1.5, 1.25, 3e5, 0.5, 1, (Setback("w1", "late", 2, "was late", share=0.5),)
    )
    store = Store.create(tmp_path, "r")
    store.agents.write_decisions(1, {"a": second}, {"a": profile})
    store.agents.write_decisions(1, {"a": first}, {"a": profile})
    store.save(replace(done(1), standings={"a": standing}))
    store.agents.write_decisions(2, {"a": second}, {})
    with pytest.raises(StoreError, match="round 1"):
        store.save(replace(done(1), standings={"a": Standing()}))
    store.close()
    store = Store.open(tmp_path, "r", read_only=True)
    assert store.agents.read_profiles() == {"a": profile}
    assert store.agents.read_standings() == {"a": standing}
    assert store.agents.read_decisions("a") == [(1, first), (2, second)]
    assert store.agents.read_last_decisions() == {"a": (2, second)}
    assert store.read_last_entries()["b"] == (1, store.read_entries(1)[1])
    store.close()


def test_damage_to_profiles_stays_visible_while_none_is_written(tmp_path: Path) -> None:
    """A round seals what it writes, and nothing else."""
    card = Card("d", (1, 8, 8), "uint8", 10, 100, 20, (5.0,), (6.0,))
    profile = Profile("a", "h", "s", 0.5, 10**9, 1e6, 2**18, "torch", card, ())
    store = Store.create(tmp_path, "r")
    store.agents.write_decisions(1, {}, {"a": profile})
    with closing(sqlite3.connect(store.folder / "run.sqlite")) as database:
        with database:
            database.execute("UPDATE profiles SET agent = 'b'")
        store.agents.write_decisions(2, {}, {"a": profile})
        assert find_damage(database) == ["profiles"]
    store.close()


def test_decisions_that_cannot_be_written_are_a_store_error(tmp_path: Path) -> None:
    store = Store.create(tmp_path, "r")
    store.close()
    with pytest.raises(StoreError, match="decisions of round 1"):
        store.agents.write_decisions(1, {}, {})


def test_sessions_are_counted(tmp_path: Path) -> None:
    store = Store.create(tmp_path, "r")
    assert [store.next_session() for _ in range(3)] == [1, 2, 3]
    store.close()


def test_the_score_of_a_diverged_model_is_stored(tmp_path: Path) -> None:
    store = Store.create(tmp_path, "r")
    store.save(replace(done(1), scores=[Score("w1", "central", 0.1, math.nan, 8)]))
    assert math.isnan(store.read_scores(1)[0].loss)
    store.close()


def test_a_start_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    store = Store.create(tmp_path, "r")
    store._database.execute("PRAGMA query_only = ON")  # like a full disk
    with pytest.raises(StoreError, match="run 'r': cannot write its start"):
        store.next_session()
    with pytest.raises(StoreError, match="run 'r': cannot write its description"):
        store.write_facts(Facts())
    store.close()


def test_a_crash_while_a_run_is_created_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a service manager could neither resume it nor start it again."""

    def die(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(databases, "write_facts", die)
        with pytest.raises(KeyboardInterrupt):
            Store.create(tmp_path, "r")
    assert list_runs(tmp_path) == []
    facts = Facts({"rounds": 3})
    store = Store.create(tmp_path, "r", facts)
    assert store.read_facts() == facts
    assert {path.name.partition("-")[0] for path in store.folder.iterdir()} == {
        "lock",
        "run.sqlite",
    }
    store.close()


def test_the_last_submodel_of_an_agent_is_that_of_its_latest_task(tmp_path: Path) -> None:
    """A late update of round 1 is recorded in round 3, after the task of round 2 was."""
    store = Store.create(tmp_path, "r")
    store.save(replace(done(2), entries=(Entry("nano", "w1-d2.2.2", "failed: no"),)))
    store.save(replace(done(3), entries=(Entry("nano", "w0.5-d2.2.2", "folded", task=1),)))
    assert store.read_last_submodels() == {"nano": "w1-d2.2.2"}
    store.close()


def test_a_later_coordinator_has_a_higher_epoch_even_if_the_clock_went_back(tmp_path: Path) -> None:
    store = Store.create(tmp_path, "r")
    first = store.next_epoch(1000.0)
    assert first == 1_000_000
    assert store.next_epoch(900.0) == first + 1
    store.close()
    store = Store.open(tmp_path, "r")
    assert store.next_epoch(2000.0) == 2_000_000
    store.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_coordinator_that_lost_its_lock_writes_nothing(tmp_path: Path, replaced: bool) -> None:
    store = Store.create(tmp_path, "r")
    store.journal.begin(Base("", Round()))
    (tmp_path / "r" / "total-0").touch()
    (tmp_path / "r" / "lock").unlink()
    if replaced:
        (tmp_path / "r" / "lock").touch()
    before = {path: path.read_bytes() for path in (tmp_path / "r").iterdir() if path.is_file()}
    writes: list[Callable[[], object]] = [
        lambda: store.save(done(1)),
        store.next_session,
        lambda: store.journal.begin(Base("", Round())),
        lambda: store.journal.append(Ticked(0.0)),
        lambda: store.journal.write_total("total-1", Total()),
        store.journal.sweep,
        lambda: store.agents.write_decisions(1, {}, {}),
        lambda: store.agents.mark_asked(1, "a", "selected as a replacement"),
        lambda: store.trust.write_norms([ChangeNorm(1, "a", "w1", "weights", 1.0)]),
        lambda: store.trust.write_costs(1, {"a": 1.0}),
    ]
    error, problem = (
        (Superseded, "took over run 'r'") if replaced else (StoreError, "lost the lock of run 'r'")
    )
    for write in writes:
        with pytest.raises(error, match=problem):
            write()
    found = {path: path.read_bytes() for path in (tmp_path / "r").iterdir() if path.is_file()}
    assert found == before
    store.close()


def test_settings_equal_to_their_defaults_are_stored_apart(tmp_path: Path) -> None:
    """So an earlier version, which refuses settings that it does not know, can resume the run."""
    defaults = {"rounds": 9, "seed": 0, "broker": {"url": "", "profile": ""}, "new": {"one": 1}}
    config = {"rounds": 3, "seed": 0, "broker": {"url": "h", "profile": ""}, "new": {"one": 1}}
    store = Store.create(tmp_path, "r", Facts(config, defaults=defaults))
    assert store.read_facts().config == config
    stored = store._database.execute("SELECT value FROM facts WHERE key = 'config'").fetchone()
    assert json.loads(stored[0]) == {"rounds": 3, "broker": {"url": "h"}}
    store.write_facts(store.read_facts())  # as a version without this rule
    assert store.read_facts().config == config
    store.close()


def test_the_digest_of_rows_read_one_by_one_is_that_of_their_list() -> None:
    """Stores of earlier versions keep their digests."""
    for rows in ([], [(1, "a", 0.5)], [(1, None), (2, "é'")]):
        expected = hashlib.sha256(repr(rows).encode()).hexdigest()
        assert digest_rows(iter(rows)) == expected
