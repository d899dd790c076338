"""Held-out parts are exact: a fraction of every class, the last recordings of each person, or whole
people.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federated.data.dataset import Dataset
from federated.data.held_out_splits import hold_out, hold_out_last, hold_out_users, strata
from federated.errors import DataError


def test_hold_out_takes_its_share_of_every_class() -> None:
    y = np.repeat([0, 1, 2], [50, 10, 5]).astype(np.int64)
    train, held = hold_out(y, 0.2, np.random.default_rng(0))
    assert np.bincount(y[held]).tolist() == [10, 2, 1]
    assert np.array_equal(np.sort(np.concatenate([train, held])), np.arange(65))


def test_hold_out_leaves_the_only_example_of_a_class_to_training() -> None:
    train, held = hold_out(np.array([7, 3, 3]), 0.5, np.random.default_rng(0))
    assert 0 in train
    assert len(held) == 1


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=60), st.floats(0.01, 0.6), st.integers(0, 9)
)
def test_hold_out_splits_off_about_the_requested_fraction(
    labels: list[int], fraction: float, seed: int
) -> None:
    y = np.array(labels, np.int64)
    train, held = hold_out(y, fraction, np.random.default_rng(seed))
    assert np.array_equal(np.sort(np.concatenate([train, held])), np.arange(len(y)))
    assert 1 <= len(held) <= max(1, round(fraction * len(y)))
    assert len(train) >= 1
    singles = np.flatnonzero(np.unique(y, return_counts=True)[1] > 1)
    if len(singles):
        assert set(y[train].tolist()) == set(labels)


def test_hold_out_of_one_example_is_refused() -> None:
    with pytest.raises(DataError, match="expected at least 2 examples, found 1"):
        hold_out(np.array([0]), 0.2, np.random.default_rng(0))


def test_whole_recordings_are_held_out_from_the_end() -> None:
    train, held = hold_out_last(
        np.array([1, 1, 1, 1, 2, 2, 2, 3, 3, 3]), np.zeros(10, np.int64), 0.2
    )
    # a cut at 8 goes to the nearer end, 7
    assert (train.tolist(), held.tolist()) == ([0, 1, 2, 3, 4, 5, 6], [7, 8, 9])


def test_each_person_gives_recordings_and_who_has_one_window_none() -> None:
    users = np.array([5, 4, 4, 5, 4, 4, 9])
    sessions = np.array([51, 42, 41, 52, 42, 41, 90])
    train, held = hold_out_last(sessions, users, 0.5)
    assert (train.tolist(), held.tolist()) == ([0, 2, 5, 6], [1, 3, 4])


def test_the_last_windows_of_a_single_recording_are_held_out() -> None:
    train, held = hold_out_last(np.full(10, 3), np.zeros(10, np.int64), 0.2)
    # window 7 overlaps window 8
    assert (train.tolist(), held.tolist()) == ([0, 1, 2, 3, 4, 5, 6], [8, 9])
    train, held = hold_out_last(np.full(2, 3), np.zeros(2, np.int64), 0.2)
    assert (train.tolist(), held.tolist()) == ([0], [1])  # of two there is none to leave out
    with pytest.raises(DataError, match="2 examples of one person, found 2"):
        hold_out_last(np.array([1, 2]), np.array([1, 2]), 0.5)


def test_people_are_held_out_with_all_that_is_theirs() -> None:
    users = np.arange(60) % 10
    train, held = hold_out_users(users, 0.2, np.random.default_rng(0))
    assert (len(held), len(set(users[held].tolist()))) == (12, 2)
    assert not set(users[held].tolist()) & set(users[train].tolist())
    with pytest.raises(DataError, match="expected at least 2, found 1"):
        hold_out_users(np.zeros(3, np.int64), 0.2, np.random.default_rng(0))


def test_kinds_are_classes_or_bins_of_values_or_one_for_texts() -> None:
    x = np.zeros((20, 1), np.float32)
    values = Dataset(
        "rain",
        x,
        np.arange(20.0, dtype=np.float32)[::-1],
        x[:0],
        np.zeros((0, 1), np.float32),
        1,
        "value",
    )
    kinds, number = strata(values)
    assert number == 10
    assert kinds.tolist() == np.repeat(np.arange(9, -1, -1), 2).tolist()
    text = np.zeros((3, 4), np.int64)
    kinds, number = strata(Dataset("text", text, text, text[:0], text[:0], 5, "token"))
    assert (kinds.tolist(), number) == ([0, 0, 0], 1)
    classes = np.array([2, 0, 2])
    kinds, number = strata(Dataset("toy", x[:3], classes, x[:0], classes[:0], 4))
    assert (kinds.tolist(), number) == ([2, 0, 2], 4)
