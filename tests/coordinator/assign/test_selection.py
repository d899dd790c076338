"""Selection of agents: drawn from the seed, with spares if configured."""

from __future__ import annotations

import pytest

from coordinator.assign.selection import count_needed, count_wanted, draw_names, make_generator
from coordinator.settings.config_tables import Fleet

NAMES = [f"a{i}" for i in range(10)]


@pytest.mark.parametrize(
    ("names", "fraction", "needed"),
    [(10, 1.0, 10), (10, 0.35, 3), (10, 0.05, 1), (3, 0.7, 2), (0, 0.5, 0)],
)
def test_a_round_needs_a_fraction_of_the_agents_and_at_least_one(
    names: int, fraction: float, needed: int
) -> None:
    assert count_needed(names, fraction) == needed


@pytest.mark.parametrize(("over", "asked"), [(0.0, 5), (0.3, 7), (0.2, 6), (5.0, 10)])
def test_more_agents_are_selected_than_needed_up_to_all(over: float, asked: int) -> None:
    assert count_wanted(Fleet(fraction=0.5, over=over), 10) == (5, asked)
    found = draw_names(NAMES, asked, make_generator(0, 1, 1))
    assert len(found) == len(set(found)) == asked
    assert found == sorted(found)


@pytest.mark.parametrize(("buffer", "needed"), [(0, 3), (1, 1), (4, 4)])
def test_a_buffer_or_half_of_the_training_agents_close_a_buffered_round(
    buffer: int, needed: int
) -> None:
    assert count_wanted(Fleet(mode="buffered", fraction=0.5, buffer=buffer), 10) == (needed, 5)


def test_the_draw_depends_on_the_seed_and_the_round_only() -> None:
    drawn = [draw_names(NAMES, 3, make_generator(7, 1, number)) for number in range(20)]
    assert drawn == [
        draw_names(NAMES[::-1], 3, make_generator(7, 1, number)) for number in range(20)
    ]
    assert len({tuple(one) for one in drawn}) > 5


def test_no_agents_are_drawn_from_none() -> None:
    assert draw_names([], 3, make_generator(0, 1, 1)) == []
    assert draw_names(NAMES, 30, make_generator(0, 1, 1)) == NAMES
