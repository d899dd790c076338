"""Partitions are disjoint, cover the data, honour their minimum, and are the same on every machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from federated.data.dataset import Indices
from federated.data.partitions import Shard, classes_per_agent, dirichlet, drawn, generator, iid, parse
from federated.errors import ConfigError, DataError, Unknown

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(lambda labels: np.array(labels, np.int64))
SEEDS = st.integers(0, 2**32)
TEN = np.repeat(np.arange(10), 20)


def assert_split(parts: list[Indices], examples: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(examples))
    assert all(np.array_equal(part, np.sort(part)) for part in parts)


@given(LABELS, st.integers(1, 9), SEEDS)
def test_iid_is_a_split_into_equal_parts(y: np.ndarray, agents: int, seed: int) -> None:
    assume(len(y) >= agents)
    parts = iid(y, agents, np.random.default_rng(seed))
    assert_split(parts, len(y))
    sizes = [len(part) for part in parts]
    assert len(sizes) == agents
    assert max(sizes) - min(sizes) <= 1


@given(LABELS, st.integers(1, 6), st.floats(0.05, 50), st.integers(0, 5), SEEDS)
def test_dirichlet_is_a_split_with_its_minimum_or_says_that_it_cannot(y: np.ndarray, agents: int, alpha: float, minimum: int, seed: int) -> None:
    try:
        parts = dirichlet(y, agents, alpha, np.random.default_rng(seed), minimum)
    except DataError:
        assert minimum > 0
        return
    assert_split(parts, len(y))
    assert len(parts) == agents
    assert min(len(part) for part in parts) >= minimum


@given(LABELS, st.integers(1, 8), st.integers(1, 6), SEEDS)
def test_classes_per_agent_gives_each_agent_exactly_that_many(y: np.ndarray, agents: int, classes: int, seed: int) -> None:
    present, counts = np.unique(y, return_counts=True)
    assume(classes <= len(present) <= agents * classes)
    try:
        parts = classes_per_agent(y, agents, classes, np.random.default_rng(seed))
    except DataError:
        assert counts.min() < -(-agents * classes // len(present))
        return
    assert_split(parts, len(y))
    assert [len(set(y[part].tolist())) for part in parts] == [classes] * agents


def test_classes_have_equally_many_holders() -> None:
    parts = classes_per_agent(TEN, 5, 4, np.random.default_rng(1))
    holders = np.bincount(np.concatenate([np.unique(TEN[part]) for part in parts]))
    assert holders.tolist() == [2] * 10
    assert {len(part) for part in parts} == {40}


def test_alpha_sets_the_skew() -> None:
    def spread(alpha: float) -> float:
        parts = dirichlet(np.repeat(np.arange(10), 500), 5, alpha, np.random.default_rng(0))
        y = np.repeat(np.arange(10), 500)
        return float(np.std([np.bincount(y[part], minlength=10) for part in parts]))

    assert spread(1000) < 10 < 100 < spread(0.1)


def test_same_seed_same_parts_other_seed_other_parts() -> None:
    one, two, other = (dirichlet(TEN, 4, 0.5, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("text", "agents", "message"),
    [
        ("iid", 201, "200 examples over 201 agents"),
        ("dirichlet:1", 101, "2 examples for each, 202 in all"),
        ("dirichlet:0.001", 60, "found [01] at best in 200 draws; take a larger alpha or fewer agents"),
        ("classes:11", 5, "found 11 and 55"),
        ("classes:2", 4, "10 or more in all, found 2 and 8"),
        ("classes:10", 21, "expected at least 21 examples of class 0, found 20"),
    ],
)
def test_a_partition_that_cannot_be_is_refused(text: str, agents: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse(text)(TEN, agents, np.random.default_rng(0))


@pytest.mark.parametrize(
    "text", ["iid:2", "dirichlet", "dirichlet:0", "dirichlet:-1", "dirichlet:nan", "dirichlet:inf", "classes:", "classes:0", "classes:1.5"]
)
def test_a_wrong_argument_is_told_by_example(text: str) -> None:
    with pytest.raises(ConfigError, match=f"partition '{text}': expected a form like '{text.partition(':')[0]}"):
        parse(text)


def test_an_unknown_partition_lists_the_nearest_first() -> None:
    with pytest.raises(Unknown, match="known: dirichlet, "):
        parse("dirichlett:1")


def test_shards_of_one_seed_are_the_parts_of_one_partition() -> None:
    assert_split([Shard(i, 4, "dirichlet:1.0", 7).of_labels(TEN) for i in range(4)], 200)


@pytest.mark.parametrize("text", ["", "3", "1/", "-1/4", "a/b", "1/4/2", "1.0/4"])
def test_a_misspelled_shard_is_told_by_example(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a form like '0/4'"):
        Shard.parse(text)


@pytest.mark.parametrize("index", [-1, 4])
def test_a_shard_outside_its_partition_is_refused(index: int) -> None:
    with pytest.raises(ConfigError, match="expected an index from 0 to 3"):
        Shard(index, 4)


def test_a_shard_drawn_from_a_name_is_a_quarter_and_skewed() -> None:
    mine = drawn(TEN, "attic-pi")
    assert len(mine) == 50
    assert len(np.unique(mine)) == 50
    assert np.array_equal(mine, drawn(TEN, "attic-pi"))
    assert not np.array_equal(mine, drawn(TEN, "cellar-pi"))
    assert np.ptp(np.bincount(TEN[mine], minlength=10)) > 5


def test_generators_of_words_are_the_same_in_every_process() -> None:
    """A number written down once: Python's own hash() would differ from process to process."""
    assert generator("a", "b").integers(1000) == 632
    assert generator("ab").integers(10**9) != generator("a", "b").integers(10**9)
