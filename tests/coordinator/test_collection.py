"""How the tasks of a round stand: whose update is waited for, who is overdue, and what goes on when the round closes."""

from __future__ import annotations

from pathlib import Path

from coordinator.collection import CARRIED, Collection, Settled, key_of
from coordinator.openings import missing
from federated.task import Recipe, Task
from federated.wire import messages
from models.families import network
from models.submodel import Submodel

SMALL = Submodel(network("mlp", (6,), 3), 0.5, ())


def task(agent: str, round: int = 1, lease: float = 0.0) -> Task:
    return Task("r", round, 1, agent, "train", SMALL, "r0", "0" * 64, 1000, Recipe(), 60.0, lease=lease)


def collection(agents: str, *, flowing: bool = False, carried: tuple[Settled, ...] = ()) -> Collection:
    return Collection([task(agent) for agent in agents], carried=carried, flowing=flowing)


def late(agent: str, round: int = 1) -> Settled:
    return Settled(task(agent, round), 0.0, lambda settled, update: None, carried=True)


def come(made: Collection, *agents: str, round: int = 1) -> None:
    for agent in agents:
        made.entries[key_of(task(agent, round))].update = Path(agent)


def folded(made: Collection, *, closing: bool = False) -> list[str]:
    return [entry.task.agent for entry in made.next(closing=closing)]


def test_updates_are_folded_in_the_order_of_names_as_long_as_somebody_is_counted_on() -> None:
    made = collection("abc")
    come(made, "b", "c")
    assert folded(made) == []
    made.entries[key_of(task("a"))].lost = True
    assert folded(made) == ["b", "c"]
    come(made, "a")
    assert folded(made) == ["a"], "a late return is welcome"


def test_who_is_overdue_holds_up_nobody_and_may_still_come() -> None:
    made = Collection([task("a", lease=10.0), task("b")])
    come(made, "b")
    assert (made.watch(10.0), folded(made), made.complete(2)) == ([], [], False)
    assert [entry.task.agent for entry in made.watch(10.1)] == ["a"]
    assert made.watch(11.0) == [], "it is said once"
    assert folded(made) == ["b"]
    assert made.complete(2), "nothing more can come"
    come(made, "a")
    assert folded(made) == ["a"]


def test_a_round_that_waits_counts_its_own_updates_alone_and_takes_those_of_earlier_rounds_with_it() -> None:
    made = Collection([task("a", 2), task("b", 2)], carried=[late("c")])
    come(made, "c")
    assert not made.complete(1)
    come(made, "a", round=2)
    assert made.complete(1)
    assert folded(made, closing=True) == ["a", "c"]


def test_where_nobody_waits_updates_are_folded_as_they_come_and_all_count() -> None:
    made = Collection([task("a", 2), task("b", 2)], carried=[late("c")], flowing=True)
    come(made, "b", round=2)
    assert folded(made) == ["b"]
    come(made, "c")
    assert made.complete(2)
    assert folded(made) == ["c"]


def test_what_is_open_when_a_round_closes_is_carried_on_or_dropped() -> None:
    made = Collection([task("a", 5), task("b", 5)], carried=[late("c", 1), late("d", 4)])
    made.entries[key_of(task("b", 5))].lost = True
    dropped, carried = made.close(lambda settled: settled.task.round > 1 and not settled.lost)
    assert [(one.task.agent, one.outcome) for one in dropped] == [("b", "gone"), ("c", "stale")]
    assert [(one.task.agent, one.outcome, one.carried) for one in carried] == [("a", "", True), ("d", "", True)]
    assert [one.task.agent for one in made.entries.values()] == ["b", "c"]


def test_what_an_earlier_coordinator_carried_on_stays_out_of_the_round_and_open() -> None:
    made = Collection([task("a"), task("b")], settled={("a", 1): CARRIED})
    come(made, "a", "b")
    assert folded(made, closing=True) == ["b"]
    assert [(one.task.agent, one.outcome) for one in made.close()[1]] == [("a", "")]


def test_tasks_of_several_rounds_of_one_agent_are_told_apart() -> None:
    made = Collection([task("a", 3)], carried=[late("a", 1)])
    failure = messages.Failure("r", 1, 1, "train", SMALL.name, "no")
    found = made.find("a", failure)
    assert found is not None
    assert found.task.round == 1
    assert made.find("a", messages.Failure("r", 2, 1, "train", SMALL.name, "no")) is None
    assert len(made.of("a")) == 2


def test_as_many_are_asked_besides_as_went_failed_or_are_overdue() -> None:
    made = collection("abcd")
    assert missing(made, 4) == 0
    made.entries[key_of(task("a"))].lost = True
    made.entries[key_of(task("b"))].outcome = "failed: no"
    come(made, "c")
    assert missing(made, 4) == 2
    made.add([task("e"), task("f")], 0.0)
    assert missing(made, 4) == 0
    assert missing(collection("ab", carried=(late("c"),)), 2) == 0, "late ones are no replacement"


def test_where_nobody_waits_whoever_delivered_leaves_room_for_another() -> None:
    made = collection("abc", flowing=True, carried=(late("d"),))
    assert missing(made, 4) == 0
    come(made, "a", "d")
    assert missing(made, 4) == 2
