"""The release history: each transition, and the card that agents get after it."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.release.history import (
    Event,
    History,
    Item,
    ModelHistory,
    add_reports,
    build_card,
    find_rollback_event,
    find_rollback_target,
    list_kept,
    list_reports,
    promote,
    release,
    roll_back,
    start_canary,
)
from federated.errors import ExportError
from federated.wire.release_messages import Release, Serving, Version

EMPTY = History("r")


def item(letter: str, round: int = 1) -> Item:
    return Item(Version(letter * 12, round, letter * 64, 9, ("w1",)))


A, B, C = item("a"), item("b", 2), item("c", 3)


def names(history: History) -> tuple[str, ...]:
    """Return the letters of the stable, previous and canary versions."""
    return tuple(name[:1] for name in (history.stable, history.previous, history.canary))


def test_nothing_is_released_at_first() -> None:
    assert build_card(EMPTY) == Release("r")
    assert list_kept(EMPTY) == ()


def test_a_release_is_for_all_agents_and_keeps_the_previous_one() -> None:
    one = release(EMPTY, A, "t1")
    assert names(one) == ("a", "", "")
    assert build_card(one) == Release("r", A.version)
    two = release(one, B, "t2")
    assert names(two) == ("b", "a", "")
    assert names(release(two, C, "t3")) == ("c", "b", "")
    assert two.events == (Event("t1", "a" * 12, "released"), Event("t2", "b" * 12, "released"))


def test_the_same_release_again_changes_nothing() -> None:
    one = release(EMPTY, A, "t1")
    assert release(one, A, "t2") == one


def test_a_canary_is_for_its_agents_and_is_promoted() -> None:
    tried = start_canary(release(EMPTY, A, "t1"), B, ("pi",), "t2")
    assert names(tried) == ("a", "", "b")
    assert build_card(tried) == Release("r", A.version, B.version, ("pi",))
    assert set(list_kept(tried)) == {"a" * 12, "b" * 12}
    done = promote(tried, "t3", ("slow",))
    assert names(done) == ("b", "a", "")
    assert build_card(done) == Release("r", B.version)
    assert done.events[-1] == Event("t3", "b" * 12, "promoted", ("slow",))


def test_a_first_release_may_be_a_canary() -> None:
    tried = start_canary(EMPTY, A, ("pi",), "t1")
    assert build_card(tried) == Release("r", None, A.version, ("pi",))
    assert names(roll_back(tried, "t2")) == ("", "", "")


def test_a_rollback_withdraws_the_canary_first_and_then_the_release() -> None:
    tried = start_canary(release(release(EMPTY, A, "t1"), B, "t2"), C, ("pi",), "t3")
    assert find_rollback_target(tried) == ("c" * 12, "b" * 12)
    once = roll_back(tried, "t4", ("bad",))
    assert names(once) == ("b", "a", "")
    assert once.events[-1] == Event("t4", "c" * 12, "rolled back", ("bad",))
    twice = roll_back(once, "t5")
    assert names(twice) == ("a", "", "")
    with pytest.raises(
        ExportError, match="nothing to roll back to: version aaaaaaaaaaaa is the only one"
    ):
        roll_back(twice, "t6")


def test_impossible_transitions_are_errors() -> None:
    with pytest.raises(ExportError, match="nothing to roll back to: nothing was released"):
        roll_back(EMPTY, "t")
    with pytest.raises(ExportError, match="no canary to promote"):
        promote(release(EMPTY, A, "t"), "t")
    with pytest.raises(ExportError, match="is already stable"):
        start_canary(release(EMPTY, A, "t"), A, ("pi",), "t")


def test_another_canary_or_release_replaces_the_canary() -> None:
    tried = start_canary(release(EMPTY, A, "t1"), B, ("pi",), "t2")
    other = start_canary(tried, C, ("tv",), "t3")
    assert names(other) == ("a", "", "c")
    assert Event("t3", "b" * 12, "replaced") in other.events
    over = release(tried, C, "t3")
    assert names(over) == ("c", "a", "")
    assert over.agents == ()
    assert names(release(tried, B, "t3")) == ("b", "a", ""), (
        "the canary itself was released to all agents"
    )
    assert Event("t3", "b" * 12, "replaced") not in release(tried, B, "t3").events


def test_a_rollback_is_remembered_until_the_version_is_released_again() -> None:
    back = roll_back(start_canary(release(EMPTY, A, "t1"), B, ("pi",), "t2"), "t3", ("bad",))
    assert find_rollback_event(back, "b" * 12) == Event("t3", "b" * 12, "rolled back", ("bad",))
    assert find_rollback_event(back, "a" * 12) is None
    assert find_rollback_event(back, "f" * 12) is None
    assert find_rollback_event(start_canary(back, B, ("pi",), "t4"), "b" * 12) is None


def test_reports_are_stored_with_the_version_that_they_are_about() -> None:
    tried = start_canary(release(EMPTY, A, "t1"), B, ("pi", "tv"), "t2")
    pi = Serving("pi", "s", "b" * 12, accuracy=0.5)
    tv = Serving("tv", "s", "a" * 12, refused="b" * 12, reason="NaN")
    noted = add_reports(tried, {"pi": pi, "tv": tv, "old": Serving("old", "s", "f" * 12)})
    assert noted.items["b" * 12].reports == {"pi": pi, "tv": tv}
    assert noted.items["a" * 12].reports == {"tv": tv}
    assert list_reports(noted) == {"pi": pi, "tv": tv}


def test_a_history_round_trips_through_json() -> None:
    history = add_reports(
        start_canary(release(EMPTY, A, "t1"), B, ("pi",), "t2"),
        {"pi": Serving("pi", "s", "b" * 12, p90=0.25)},
    )
    assert msgspec.json.decode(msgspec.json.encode(history), type=ModelHistory) == history
