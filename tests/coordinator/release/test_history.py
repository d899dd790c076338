"""What becomes of versions: each step of the history, and what agents are told after it."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.release.history import (
    Event,
    History,
    Item,
    canaried,
    card_of,
    kept,
    latest,
    promoted,
    released,
    reported,
    roll_target,
    rolled_back,
    taken_back,
)
from federated.errors import ExportError
from federated.wire.release_files import Release, Serving, Version

EMPTY = History("r")


def item(letter: str, round: int = 1) -> Item:
    return Item(Version(letter * 12, round, letter * 64, 9, ("w1",)))


A, B, C = item("a"), item("b", 2), item("c", 3)


def names(history: History) -> tuple[str, ...]:
    """Stable, previous and canary, by their letters."""
    return tuple(name[:1] for name in (history.stable, history.previous, history.canary))


def test_nothing_is_released_at_first() -> None:
    assert card_of(EMPTY) == Release("r")
    assert kept(EMPTY) == ()


def test_a_release_is_for_all_and_remembers_the_one_before() -> None:
    one = released(EMPTY, A, "t1")
    assert names(one) == ("a", "", "")
    assert card_of(one) == Release("r", A.version)
    two = released(one, B, "t2")
    assert names(two) == ("b", "a", "")
    assert names(released(two, C, "t3")) == ("c", "b", "")
    assert two.events == (Event("t1", "a" * 12, "released"), Event("t2", "b" * 12, "released"))


def test_the_same_release_again_changes_nothing() -> None:
    one = released(EMPTY, A, "t1")
    assert released(one, A, "t2") == one


def test_a_canary_is_for_its_agents_and_is_promoted() -> None:
    tried = canaried(released(EMPTY, A, "t1"), B, ("pi",), "t2")
    assert names(tried) == ("a", "", "b")
    assert card_of(tried) == Release("r", A.version, B.version, ("pi",))
    assert set(kept(tried)) == {"a" * 12, "b" * 12}
    done = promoted(tried, "t3", ("slow",))
    assert names(done) == ("b", "a", "")
    assert card_of(done) == Release("r", B.version)
    assert done.events[-1] == Event("t3", "b" * 12, "promoted", ("slow",))


def test_a_first_release_may_be_a_canary() -> None:
    tried = canaried(EMPTY, A, ("pi",), "t1")
    assert card_of(tried) == Release("r", None, A.version, ("pi",))
    assert names(rolled_back(tried, "t2")) == ("", "", "")


def test_a_rollback_takes_the_canary_first_and_then_the_release() -> None:
    tried = canaried(released(released(EMPTY, A, "t1"), B, "t2"), C, ("pi",), "t3")
    assert roll_target(tried) == ("c" * 12, "b" * 12)
    once = rolled_back(tried, "t4", ("bad",))
    assert names(once) == ("b", "a", "")
    assert once.events[-1] == Event("t4", "c" * 12, "rolled back", ("bad",))
    twice = rolled_back(once, "t5")
    assert names(twice) == ("a", "", "")
    with pytest.raises(
        ExportError, match="nothing to roll back to: version aaaaaaaaaaaa is the only one"
    ):
        rolled_back(twice, "t6")


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(ExportError, match="nothing to roll back to: nothing was released"):
        rolled_back(EMPTY, "t")
    with pytest.raises(ExportError, match="no canary to promote"):
        promoted(released(EMPTY, A, "t"), "t")
    with pytest.raises(ExportError, match="what all agents have already"):
        canaried(released(EMPTY, A, "t"), A, ("pi",), "t")


def test_another_canary_or_release_replaces_the_canary() -> None:
    tried = canaried(released(EMPTY, A, "t1"), B, ("pi",), "t2")
    other = canaried(tried, C, ("tv",), "t3")
    assert names(other) == ("a", "", "c")
    assert Event("t3", "b" * 12, "replaced") in other.events
    over = released(tried, C, "t3")
    assert names(over) == ("c", "a", "")
    assert over.agents == ()
    assert names(released(tried, B, "t3")) == ("b", "a", ""), "the canary itself, to all"
    assert Event("t3", "b" * 12, "replaced") not in released(tried, B, "t3").events


def test_what_was_rolled_back_is_known_until_it_is_released_again() -> None:
    back = rolled_back(canaried(released(EMPTY, A, "t1"), B, ("pi",), "t2"), "t3", ("bad",))
    assert taken_back(back, "b" * 12) == Event("t3", "b" * 12, "rolled back", ("bad",))
    assert taken_back(back, "a" * 12) is None
    assert taken_back(back, "f" * 12) is None
    assert taken_back(canaried(back, B, ("pi",), "t4"), "b" * 12) is None


def test_reports_are_noted_with_the_version_that_they_are_about() -> None:
    tried = canaried(released(EMPTY, A, "t1"), B, ("pi", "tv"), "t2")
    pi = Serving("pi", "s", "b" * 12, accuracy=0.5)
    tv = Serving("tv", "s", "a" * 12, refused="b" * 12, reason="NaN")
    noted = reported(tried, {"pi": pi, "tv": tv, "old": Serving("old", "s", "f" * 12)})
    assert noted.items["b" * 12].reports == {"pi": pi, "tv": tv}
    assert noted.items["a" * 12].reports == {"tv": tv}
    assert latest(noted) == {"pi": pi, "tv": tv}


def test_a_history_is_the_same_after_a_file() -> None:
    history = reported(
        canaried(released(EMPTY, A, "t1"), B, ("pi",), "t2"),
        {"pi": Serving("pi", "s", "b" * 12, p90=0.25)},
    )
    assert msgspec.json.decode(msgspec.json.encode(history), type=History) == history
