"""The tasks of a round: the order in which their updates are folded, and what an earlier coordinator knew of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.collection import CARRIED, RETURN, Collection, Settled, unchecked
from federated.task import Recipe, Task
from models.families import menu, network

(SUBMODEL,) = menu(network("mlp-small", (1, 8, 8), 10), (1.0,), (2,))[-1:]


def tasks(names: str) -> list[Task]:
    return [Task("r", 1, 1, name, "train", SUBMODEL, "r0", "0" * 64, 1000, Recipe(), 60.0) for name in names]


def arrive(collection: Collection, names: str) -> None:
    for name in names:
        collection.of(name)[0].update = Path(name)


def folded(collection: Collection, *, closing: bool = False) -> str:
    names = ""
    for entry in collection.next(closing=closing):
        entry.outcome = "folded"
        names += entry.task.agent
    return names


def test_updates_are_folded_in_the_order_of_names() -> None:
    collection = Collection(tasks("dcba"))
    arrive(collection, "cb")
    assert folded(collection) == ""
    arrive(collection, "a")
    assert folded(collection) == "abc"
    arrive(collection, "d")
    assert folded(collection) == "d"


def test_nobody_waits_for_who_went_or_failed() -> None:
    collection = Collection(tasks("abcd"))
    arrive(collection, "cd")
    collection.of("a")[0].lost = True
    collection.of("b")[0].outcome = "failed: no"
    assert folded(collection) == "cd"


@pytest.mark.parametrize(("waiting", "order"), [(0, ""), (3, ""), (2, "b"), (1, "bc")])
def test_no_more_wait_for_an_earlier_name_than_may(waiting: int, order: str) -> None:
    collection = Collection(tasks("abcd"), waiting=waiting)
    arrive(collection, "bcd")
    assert folded(collection) == order


def test_who_has_only_just_gone_may_come_back_to_a_round_that_waits_for_nobody_else() -> None:
    leased = Collection([replace(task, lease=10.0) for task in tasks("ab")])
    arrive(leased, "a")
    gone = leased.of("b")[0]
    gone.lost, gone.lost_at = True, 100.0
    assert folded(leased) == "a"  # nothing waits for it that could go on
    assert not leased.complete(2, 100.0 + RETURN - 0.1)
    assert leased.complete(2, 100.0 + RETURN)
    assert leased.complete(1, 100.0)
    simulated = Collection(tasks("b"))  # there a device that went is not started again
    simulated.of("b")[0].lost = True
    assert simulated.complete(1, 0.0)


def test_what_an_earlier_coordinator_settled_is_not_open() -> None:
    collection = Collection(tasks("abc"), settled={("a", 1): "folded", ("b", 1): "late"})
    assert [entry.open for entry in collection.entries.values()] == [False, False, True]
    assert all(entry.resumed for entry in collection.entries.values())
    assert not collection.complete(2)
    arrive(collection, "c")
    assert collection.complete(2)
    assert folded(collection) == "c"


def test_what_is_folded_is_not_folded_again_though_its_file_lies_there() -> None:
    """A coordinator that dies between a snapshot and what it makes superfluous leaves both, and the file is found first."""
    (task,) = tasks("a")
    found = Settled(task, 0.0, unchecked, update=Path("a"), resumed=True, carried=True)
    collection = Collection(settled={("a", 1): "folded"}, carried=[found])
    assert folded(collection, closing=True) == ""
    assert collection.close() == ([], [])


def test_what_a_closed_round_carried_goes_on_while_late_updates_count_and_is_dropped_where_they_no_longer_do() -> None:
    for carry, outcome in ((True, ""), (False, "late")):
        collection = Collection(tasks("ab"), settled={("a", 1): "folded", ("b", 1): CARRIED})
        (entry,) = collection.of("b")
        dropped, carried = collection.close(lambda entry, carry=carry: carry)  # type: ignore[misc]
        assert (dropped, carried) == (([], [entry]) if carry else ([entry], []))
        assert (entry.outcome, entry.carried) == (outcome, carry)
        assert collection.of("b") == dropped
