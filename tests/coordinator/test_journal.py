"""The journal of a round under way: it comes back as it was, and holds no more than it must."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from coordinator.assignment import Bounds, Offer
from coordinator.decisions import Decision, Verdict
from coordinator.journal import Asked, Entry, Folded, Opened, Standstill
from coordinator.records import Round
from coordinator.standing import Setback, Standing
from coordinator.store import Store
from federated.aggregate import Total, fold
from federated.errors import StoreError
from federated.method import Part
from models.families import menu, network

NETWORK = network("preresnet", (1, 8, 8), 10)
SMALL, LARGE = menu(NETWORK, (0.5, 1.0), (2,))
STANDING = Standing("basis", 2, 1.5, setbacks=(Setback(SMALL.name, "late", 3, "slow"),))
VERDICT = Verdict(SMALL, Decision("a", SMALL.name, True, "fits", 0.5, 9.0, 10**6), (Offer(SMALL, 0.5, 9.0, 10**6, True),), Bounds(seconds=30.0))
OPENED = Opened(
    4,
    2,
    {"a": SMALL, "b": LARGE},
    {"a": "0" * 64},
    ((SMALL, 1), (LARGE, 1)),
    {"a": {"labels": [1, 2]}},
    {"a": VERDICT},
    {"a": STANDING},
    60.0,
    2,
    2,
)
FOLDED = Folded(Entry("a", SMALL.name, "folded", 10, 2, 0.5, 1.25, 0.1, 7, 0, "1" * 64), SMALL, STANDING, {"before": {"count": [10]}})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store.create(tmp_path, "r")
    yield made
    made.close()


def total(*values: float) -> Total:
    made = Total()
    for i, value in enumerate(values):
        part = Part("w", ((0, 2),), (3,), torch.tensor([value, value / 3]), 0.1 + i)
        fold(made, [part], (f"a{i}", 1))
    return made


def left(store: Store, round: int = 4) -> Standstill:
    found = store.journal.standstill(round)
    assert found is not None
    return found


def test_a_round_that_began_comes_back_as_it_began(store: Store) -> None:
    assert store.journal.empty
    assert store.journal.standstill(4) is None
    store.journal.begin(OPENED)
    assert not store.journal.empty
    assert left(store).opened == OPENED
    assert (left(store).total, left(store).folded, left(store).closed, left(store).settled) == (Total(), (), None, {})


def test_a_snapshot_comes_back_bit_for_bit_and_replaces_the_one_before(store: Store) -> None:
    store.journal.begin(OPENED)
    store.journal.snapshot(4, total(1.0), [FOLDED])
    kept = total(1.0, 1e-7, 3.3)
    store.journal.snapshot(4, kept, [FOLDED, FOLDED])
    found = left(store)
    assert torch.equal(found.total.sums["w"].value, kept.sums["w"].value)
    assert (found.total.sums["w"].cover, found.total.seen) == (kept.sums["w"].cover, kept.seen)
    assert found.folded == (FOLDED, FOLDED)
    assert found.settled == {("a", 4): "folded"}
    assert len(list(store.folder.glob("total-*"))) == 1


def test_of_a_round_that_closed_nothing_more_is_awaited(store: Store) -> None:
    """What was folded after the last snapshot is not settled: it lies in the spool."""
    store.journal.begin(OPENED)
    store.journal.snapshot(4, total(1.0), [FOLDED])
    store.journal.close(4, {("a", 4): "folded", ("b", 4): "folded", ("c", 4): "late"})
    assert left(store).settled == {("a", 4): "folded", ("c", 4): "late"}


def test_a_stored_round_leaves_nothing_of_its_journal(store: Store) -> None:
    store.journal.begin(OPENED)
    store.journal.snapshot(4, total(1.0), [FOLDED])
    store.save(Round(4, 1.0, {"w": torch.zeros(3)}, {}))
    assert store.journal.empty
    assert not list(store.folder.glob("total-*"))


def test_a_snapshot_that_is_gone_or_spoilt_is_named(store: Store) -> None:
    store.journal.begin(OPENED)
    store.journal.snapshot(4, total(1.0), [FOLDED])
    (path,) = store.folder.glob("total-*")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StoreError, match="round 4, which was under way, cannot be gone on with"):
        store.journal.standstill(4)
    path.unlink()
    with pytest.raises(StoreError, match="round 4"):
        store.journal.standstill(4)


def test_a_run_with_a_round_under_way_is_not_discarded(tmp_path: Path) -> None:
    for name, kept in (("one", False), ("two", True)):
        store = Store.create(tmp_path, name)
        if kept:
            store.journal.begin(OPENED)
        store.close(discard=True)
        assert (tmp_path / name).exists() == kept


def test_a_round_that_cannot_be_gone_on_with_is_forgotten_whole_or_not_at_all(store: Store) -> None:
    store.journal.begin(OPENED)
    store.journal.ask(4, Asked("b", LARGE, "1" * 64, VERDICT, STANDING, 1))
    store._database.execute("CREATE TRIGGER full BEFORE DELETE ON asked BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
    with pytest.raises(StoreError, match="the disk is full"):
        store.journal.drop(4)
    assert len(left(store).asked) == 1, "else who was asked in the old round would be asked in the new one"
    store._database.execute("DROP TRIGGER full")
    store.journal.drop(4)
    store.journal.begin(OPENED)
    assert left(store).asked == ()
