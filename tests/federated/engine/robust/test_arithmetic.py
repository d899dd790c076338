"""Centres of coordinates by hand on nested corners, and against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.engine.aggregate import Total, fold, mean
from federated.engine.robust import arithmetic
from federated.engine.robust.catalogue import RULES
from federated.engine.robust.rule import combine
from federated.engine.update_part_files import PartStore
from tests.support.stored_updates import OLD, corner, part, result, store_parts, whole


def test_a_trimmed_mean_of_nested_corners_by_hand(tmp_path):
    """The core is held by five: of 1, 2, 3, 4 and 900 stay 2, 3 and 4. The ring by three: of (0, 5,
    7), (0, 6, 9), (0, 1, 8) the middle ones.
    """
    kept = store_parts(
        tmp_path,
        corner(1.0),
        corner(900.0),
        whole(2.0, 0.0, 0.0, 0.0),
        whole(3.0, 5.0, 6.0, 1.0),
        whole(4.0, 7.0, 9.0, 8.0),
    )
    assert result(kept, OLD, "trimmed", 1).tolist() == [[3.0, 5.0], [6.0, 1.0]]
    assert combine(RULES["trimmed"], kept, OLD, 1).seen == kept.seen


def test_a_median_of_nested_corners_by_hand(tmp_path):
    """Four hold the core: of 1, 2, 3 and 900 the mean of 2 and 3."""
    kept = store_parts(
        tmp_path,
        corner(900.0),
        whole(1.0, 0.0, 0.0, 4.0),
        whole(2.0, 5.0, -6.0, 1.0),
        whole(3.0, 7.0, 9.0, 8.0),
    )
    assert result(kept, OLD, "median", 1).tolist() == [[2.5, 5.0], [0.0, 4.0]]


@pytest.mark.parametrize("rule", ["trimmed", "median"])
def test_a_coordinate_that_too_few_hold_keeps_its_old_value_bit_for_bit(tmp_path, rule):
    old = {"w": torch.tensor([[0.1, 0.2], [0.3, 0.7]])}
    kept = store_parts(tmp_path, corner(5.0), whole(5.0, 1.0, 1.0, 1.0), whole(5.0, 1.0, 1.0, 1.0))
    found = result(kept, old, rule, 1)
    assert found[0, 0] == 5.0
    assert torch.equal(found[0, 1], old["w"][0, 1])
    assert torch.equal(found[1], old["w"][1])


def test_a_home_that_too_few_hold_is_left_out(tmp_path):
    kept = store_parts(tmp_path, whole(1.0, 1.0, 1.0, 1.0), whole(1.0, 1.0, 1.0, 1.0))
    assert not combine(RULES["median"], kept, OLD, 1).sums


def test_a_row_that_a_device_does_not_give_is_not_covered(tmp_path):
    """Row 1 is given by three of four, whose middle value is 3; row 0 by all."""
    rows = torch.tensor([1.0, 0.0])
    kept = store_parts(
        tmp_path,
        part([[1.0], [900.0]], weight=rows),
        part([[2.0], [2.0]], weight=torch.ones(2)),
        part([[3.0], [3.0]]),
        part([[9.0], [7.0]]),
    )
    assert result(kept, {"w": torch.zeros(2, 1)}, "trimmed", 1).tolist() == [[2.5], [3.0]]


def test_a_row_that_too_few_give_keeps_its_old_value(tmp_path):
    rows = torch.tensor([1.0, 0.0])
    kept = store_parts(
        tmp_path, part([[1.0], [9.0]], weight=rows), part([[2.0], [2.0]]), part([[3.0], [3.0]])
    )
    assert result(kept, {"w": torch.full((2, 1), 0.7)}, "median", 1).tolist() == [
        [2.0],
        [pytest.approx(0.7)],
    ]


@pytest.mark.parametrize("rule", ["trimmed", "median", "krum", "multikrum"])
def test_scalars_without_axes(tmp_path, rule):
    kept = store_parts(tmp_path, *(part(torch.tensor(float(v))) for v in (1, 2, 3, 4, 900)))
    assert float(result(kept, {"w": torch.tensor(0.0)}, rule, 1)) in (2.0, 2.5, 3.0)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**31), n=st.integers(1, 9), f=st.integers(0, 3), cells=st.integers(1, 50)
)
def test_trimmed_mean_and_median_are_those_of_numpy(tmp_path_factory, seed, n, f, cells):
    """Nested corners of a random tensor against a loop over coordinates, in blocks of any size."""
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 5, size=3))
    extents = [tuple(int(rng.integers(1, s + 1)) for s in shape) for _ in range(n)]
    values = [rng.standard_normal(extent).astype(np.float32) for extent in extents]
    old = rng.standard_normal(shape).astype(np.float32)
    kept = store_parts(
        tmp_path_factory.mktemp("kept"), *(part(torch.from_numpy(v), shape=shape) for v in values)
    )
    expected = {"trimmed": old.copy(), "median": old.copy()}
    for place in np.ndindex(*shape):
        there = sorted(
            float(v[place])
            for v in values
            if all(i < e for i, e in zip(place, v.shape, strict=True))
        )
        if len(there) >= 2 * f + 1:
            expected["trimmed"][place] = np.mean(there[f : len(there) - f])
            expected["median"][place] = np.median(there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arithmetic, "CELLS", cells)
        for rule, wanted in expected.items():
            total = combine(RULES[rule], kept, {"w": torch.from_numpy(old)}, f)
            found = (
                mean(total.sums["w"], torch.from_numpy(old))
                if total.sums
                else torch.from_numpy(old)
            )
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-7)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 6))
def test_without_liars_a_trimmed_mean_is_the_mean_of_equal_weights(tmp_path_factory, seed, n):
    rng = np.random.default_rng(seed)
    updates = [
        part(torch.from_numpy(rng.standard_normal(tuple(rng.integers(1, 4, size=2)))), shape=(3, 3))
        for _ in range(n)
    ]
    old, total = {"w": torch.zeros(3, 3)}, Total()
    for index, one in enumerate(updates):
        fold(total, [one], (index,))
    found = result(store_parts(tmp_path_factory.mktemp("kept"), *updates), old, "trimmed", 0)
    torch.testing.assert_close(found, mean(total.sums["w"], old["w"]))


def test_a_device_whose_late_update_came_into_the_same_round_counts_once(tmp_path):
    """One liar of four devices, twice: beside 1, 2 and 3 its two 900s would be more than a trimmed
    mean of f = 1 outlives. Its last one counts.
    """
    kept = PartStore(tmp_path)
    for name, round, value in (
        ("liar", 1, 900.0),
        ("a", 2, 1.0),
        ("b", 2, 2.0),
        ("c", 2, 3.0),
        ("liar", 2, 900.0),
    ):
        kept.fold([whole(value, value, value, value)], (name, round))
    keys = list(kept.seen)
    total = combine(RULES["trimmed"], kept, OLD, 1)
    assert mean(total.sums["w"], OLD["w"]).tolist() == [[2.5, 2.5], [2.5, 2.5]]
    assert list(total.seen) == list(kept.seen) == keys
