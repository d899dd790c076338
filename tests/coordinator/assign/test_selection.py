"""Who is asked: drawn from the seed, and more than are needed where that is wanted."""

from __future__ import annotations

import pytest

from coordinator.assign.selection import count, generator, select, wants
from coordinator.settings.tables import Fleet

NAMES = [f"a{i}" for i in range(10)]


@pytest.mark.parametrize(
    ("names", "fraction", "needed"),
    [(10, 1.0, 10), (10, 0.35, 3), (10, 0.05, 1), (3, 0.7, 2), (0, 0.5, 0)],
)
def test_a_round_needs_a_share_of_the_agents_and_one_at_least(
    names: int, fraction: float, needed: int
) -> None:
    assert count(names, fraction) == needed


@pytest.mark.parametrize(("over", "asked"), [(0.0, 5), (0.3, 7), (0.2, 6), (5.0, 10)])
def test_more_are_asked_than_are_needed_as_far_as_there_are_any(over: float, asked: int) -> None:
    assert wants(Fleet(fraction=0.5, over=over), 10) == (5, asked)
    found = select(NAMES, asked, generator(0, 1, 1))
    assert len(found) == len(set(found)) == asked
    assert found == sorted(found)


@pytest.mark.parametrize(("buffer", "needed"), [(0, 3), (1, 1), (4, 4)])
def test_where_no_round_waits_a_buffer_closes_it_or_half_of_those_at_work(
    buffer: int, needed: int
) -> None:
    assert wants(Fleet(mode="buffered", fraction=0.5, buffer=buffer), 10) == (needed, 5)


def test_who_is_drawn_follows_from_the_seed_and_the_round() -> None:
    drawn = [select(NAMES, 3, generator(7, 1, number)) for number in range(20)]
    assert drawn == [select(NAMES[::-1], 3, generator(7, 1, number)) for number in range(20)]
    assert len({tuple(one) for one in drawn}) > 5


def test_of_no_agents_nobody_is_asked() -> None:
    assert select([], 3, generator(0, 1, 1)) == []
    assert select(NAMES, 30, generator(0, 1, 1)) == NAMES
