"""Splits are disjoint, cover the data, meet their limits, and are the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from federated.data.dataset import Indices
from federated.data.partition_algorithms import (
    split_by_classes,
    split_by_dirichlet,
    split_by_strength,
    split_by_user,
    split_equally,
    split_unequally,
)
from federated.errors import DataError

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(
    lambda labels: np.array(labels, np.int64)
)
SEEDS = st.integers(0, 2**32)
TEN = np.repeat(np.arange(10), 20)


def assert_split(parts: list[Indices], examples: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(examples))
    assert all(np.array_equal(part, np.sort(part)) for part in parts)


@given(st.integers(2, 120), st.integers(1, 9), SEEDS)
def test_equal_is_a_split_into_equal_parts(n: int, agents: int, seed: int) -> None:
    assume(n >= 2 * agents)
    parts = split_equally(n, agents, np.random.default_rng(seed))
    assert_split(parts, n)
    sizes = [len(part) for part in parts]
    assert len(sizes) == agents
    assert max(sizes) - min(sizes) <= 1


@given(LABELS, st.integers(1, 6), st.floats(0.1, 0.95), SEEDS)
def test_unequal_sizes_keep_their_ratio_and_every_class_or_say_that_they_cannot(
    y: np.ndarray, agents: int, ratio: float, seed: int
) -> None:
    try:
        parts = split_unequally(y, agents, ratio, np.random.default_rng(seed))
    except DataError:
        return
    assert_split(parts, len(y))
    sizes = [len(part) for part in parts]
    assert min(sizes) >= max(2, ratio * max(sizes))
    assert all(set(y[part].tolist()) == set(y.tolist()) for part in parts)


def test_unequal_parts_hold_each_class_in_its_share() -> None:
    y = np.repeat([0, 1], [3000, 1000])
    parts = split_unequally(y, 10, 0.5, np.random.default_rng(0))
    sizes = np.array([len(part) for part in parts])
    assert sizes.max() > 1.3 * sizes.min()
    for part in parts:
        assert abs(int((y[part] == 0).sum()) - 0.75 * len(part)) <= 2


@given(LABELS, st.integers(1, 6), st.floats(0.05, 50), st.integers(0, 5), SEEDS, st.booleans())
def test_dirichlet_gives_every_part_its_minimum_or_fails(
    y: np.ndarray, agents: int, alpha: float, minimum: int, seed: int, balanced: bool
) -> None:
    try:
        parts = split_by_dirichlet(
            y, agents, alpha, np.random.default_rng(seed), minimum, balanced=balanced
        )
    except DataError:
        assert minimum > 0
        return
    assert_split(parts, len(y))
    assert len(parts) == agents
    assert min(len(part) for part in parts) >= minimum


def test_alpha_sets_the_skew() -> None:
    y = np.repeat(np.arange(10), 500)

    def spread(alpha: float) -> float:
        parts = split_by_dirichlet(y, 5, alpha, np.random.default_rng(0))
        return float(np.std([np.bincount(y[part], minlength=10) for part in parts]))

    assert spread(1000) < 10 < 100 < spread(0.1)


def test_a_balanced_draw_gives_each_part_at_most_its_share_and_one_class() -> None:
    y = np.repeat(np.arange(10), 500)
    sizes = {
        b: [len(p) for p in split_by_dirichlet(y, 5, 0.1, np.random.default_rng(0), balanced=b)]
        for b in (False, True)
    }
    assert max(sizes[True]) < 1000 + 500  # at most its fifth of 5000 less one, and then a class
    assert max(sizes[False]) >= 1000 + 500


def test_same_seed_same_parts_other_seed_other_parts() -> None:
    one, two, other = (
        split_by_dirichlet(TEN, 4, 0.5, np.random.default_rng(seed)) for seed in (3, 3, 4)
    )
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@given(LABELS, st.integers(1, 8), st.integers(1, 6), SEEDS)
def test_classes_per_agent_gives_each_agent_exactly_that_many(
    y: np.ndarray, agents: int, classes: int, seed: int
) -> None:
    present, counts = np.unique(y, return_counts=True)
    assume(classes <= len(present) <= agents * classes)
    try:
        parts = split_by_classes(y, agents, classes, np.random.default_rng(seed))
    except DataError:
        assert counts.min() < -(-agents * classes // len(present))
        return
    assert_split(parts, len(y))
    assert [len(set(y[part].tolist())) for part in parts] == [classes] * agents


def test_classes_have_equally_many_holders_and_equal_shares() -> None:
    parts = split_by_classes(TEN, 5, 4, np.random.default_rng(1))
    holders = np.bincount(np.concatenate([np.unique(TEN[part]) for part in parts]))
    assert holders.tolist() == [2] * 10
    assert all(set(np.bincount(TEN[part]).tolist()) <= {0, 10} for part in parts)


def test_one_person_is_one_device() -> None:
    parts = split_by_user(np.array([7, 3, 7, 3, 5, 5]), 3)
    assert [part.tolist() for part in parts] == [[1, 3], [4, 5], [0, 2]]


def test_fewer_devices_than_people_take_them_whole_and_alike() -> None:
    users = np.repeat([1, 2, 3, 4], [5, 4, 3, 2])
    parts = split_by_user(users, 2)
    assert_split(parts, 14)
    assert [sorted(set(users[part].tolist())) for part in parts] == [[1, 4], [2, 3]]
    with pytest.raises(DataError, match="4 people over 5 agents: expected 1 to 4 agents, found 5"):
        split_by_user(users, 5)


def test_the_strong_hold_half_and_the_others_are_skewed() -> None:
    y = np.repeat(np.arange(10), 100)
    parts = split_by_strength(y, 6, 2, 0.1, np.random.default_rng(0))
    assert_split(parts, 1000)
    assert [len(part) for part in parts[:2]] == [250, 250]
    assert all(len(np.unique(y[part])) == 10 for part in parts[:2])
    assert min(len(np.unique(y[part])) for part in parts[2:]) < 10
    with pytest.raises(DataError, match="more agents than the 2 strong ones, found 2"):
        split_by_strength(y, 2, 2, 0.1, np.random.default_rng(0))
