"""Updates at hand are added block by block, with the same bits as one by one."""

from __future__ import annotations

from math import nan

import pytest
import torch

from federated.engine import blockwise_sums
from federated.engine.aggregate import Compiled, Total, dump, fold, load, mean
from federated.engine.update_contributions import RowParts, Terms
from models.slicing import Row, corner

SHAPES = {"a": (5, 3), "b": (7,), "c": (40, 6), "d": ()}


@pytest.fixture(autouse=True)
def memory_with_values(monkeypatch):
    """Sums lie in memory that earlier ones have used."""
    monkeypatch.setattr(blockwise_sums, "lend_memory", lambda count: torch.full((count,), nan))


def rows(sizes):
    return tuple(
        Row(name, corner(size), name, corner(size), SHAPES[name]) for name, size in sizes.items()
    )


WHOLE = rows(SHAPES)
NARROW = rows({"a": (2, 3), "b": (4,), "c": (17, 2), "d": ()})


def update(plan, seed, *, flat):
    """Return tensors for the rows, as views of one buffer or each on its own."""
    generator = torch.Generator().manual_seed(seed)
    buffer, found, start = torch.randn(512, generator=generator), {}, 0
    for row in plan:
        shape = tuple(b for _, b in row.here)
        count = torch.Size(shape).numel()
        value = buffer[start : start + count].view(shape)
        found[row.local] = value if flat else value.clone()
        start += -(-count // 16) * 16
    return found


def total_of(most, *, flat, own=False):
    total = Total(most=most)
    for index in range(7):
        plan = NARROW if index % 3 == 1 else WHOLE
        tensors = update(plan, index, flat=flat)
        by_row = torch.arange(tensors["b"].numel()) % 2 * 1.5
        terms = {"b": Terms(by_row), "c": Terms(2.0, 1 / (3 + index))} if own else {}
        parts = RowParts(plan, tensors, Terms(0.3 + index), terms)
        assert fold(total, parts, (f"a{index}",))
    return total


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("most", [1, 2, 7, 100])
@pytest.mark.parametrize("size", [8, 64, 1 << 19])
def test_the_bits_depend_neither_on_blocks_nor_on_how_many_updates_are_at_hand(
    monkeypatch, size, most, own
):
    monkeypatch.setattr(blockwise_sums, "BLOCK", size)
    one_by_one = total_of(1, flat=False, own=own).sums
    together = total_of(most, flat=True, own=own).sums
    assert one_by_one.keys() == together.keys()
    old = {home: torch.zeros(shape) for home, shape in SHAPES.items()}
    for home, expected in one_by_one.items():
        assert torch.equal(together[home].value, expected.value)
        assert repr(together[home].cover) == repr(expected.cover)
        assert torch.equal(mean(together[home], old[home]), mean(expected, old[home]))


def whole_update(seed, own=None):
    return RowParts(WHOLE, update(WHOLE, seed, flat=True), Terms(1.0), own or {})


def bits(total):
    tensors, text = dump(total)
    return {home: value.tolist() for home, value in tensors.items()}, text


def test_neighbours_become_one_addition_that_waits_until_the_sums_are_read():
    total = Total(most=3)
    fold(total, whole_update(0), ("a",))
    ((compiled, *_),) = total._waiting
    assert [len(additions) for additions in compiled.placed.values()] == [1]
    assert torch.equal(total.sums["a"].value, update(WHOLE, 0, flat=True)["a"])
    assert not total._waiting


def test_totals_of_equal_rows_share_their_additions():
    totals = Total(most=3), Total(most=3)
    for index, total in enumerate(totals):
        plan = rows(SHAPES)  # equal, but another object
        parts = RowParts(plan, update(plan, index, flat=True), Terms(1.0))
        fold(total, parts, ("a",))
    one, other = (total._waiting[0][0].placed for total in totals)
    for (target, addition), (theirs, same) in zip(one[0], other[0], strict=True):
        assert addition is same
        assert target.data_ptr() != theirs.data_ptr()
    for index, total in enumerate(totals):
        assert torch.equal(total.sums["c"].value, update(WHOLE, index, flat=True)["c"])


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({"c": Terms(1.0)}, "expected 1 extras"),
        ({"c": Terms(1.0, 1.0, (2.0, 3.0))}, "expected 1 extras"),
        ({"c": Terms(torch.ones(39), 1.0, (2.0,))}, "one weight for each of 40 rows"),
        ({"b": Terms(torch.ones(1)), "c": Terms(1.0, 1.0, (2.0,))}, "one weight for each of 7"),
        ({"c": Terms(-1.0, 1.0, (2.0,))}, "at least 0, found -1.0"),
        ({"c": Terms(torch.full((40,), torch.inf), 1.0, (2.0,))}, "at least 0, found inf"),
    ],
    ids=["fewer extras", "more extras", "fewer rows", "one row", "negative", "infinite"],
)
@pytest.mark.parametrize("most", [1, 3])
def test_an_update_of_other_terms_leaves_no_trace(most, own, problem):
    right = {"c": Terms(1.0, 1.0, (2.0,))}
    total, expected = Total(most=most), Total()
    for one in (total, expected):
        fold(one, whole_update(0, own=right), ("a",))
    with pytest.raises(ValueError, match=problem):
        fold(total, whole_update(1, own=own), ("b",))
    for one in (total, expected):
        fold(one, whole_update(2, own=right), ("c",))
    assert bits(total) == bits(expected)


def test_rows_of_one_home_with_different_extras_leave_no_trace():
    two = (
        Row("a", corner((2, 3)), "h", ((0, 2), (0, 3)), (5, 3)),
        Row("b", corner((2, 3)), "h", ((2, 4), (0, 3)), (5, 3)),
    )
    parts = RowParts(two, update(two, 0, flat=True), Terms(1.0), {"b": Terms(1.0, 1.0, (2.0,))})
    total = Total(most=3)
    with pytest.raises(ValueError, match="expected 0 extras"):
        fold(total, parts, ("a",))
    assert not total.sums
    assert not total.seen


def test_a_snapshot_contains_the_updates_that_wait():
    total, expected = Total(most=9), Total()
    for one in (total, expected):
        fold(one, whole_update(0), ("a",))
    restored = load(*dump(total))
    for one in (total, restored, expected):
        fold(one, whole_update(1), ("b",))
    assert bits(total) == bits(expected) == bits(restored)


@pytest.mark.parametrize("narrow", [{"a": (8, 1), "b": (4,)}, {"a": (4, 1), "b": (8,)}])
def test_entries_that_the_first_update_does_not_cover_count_as_zero(narrow):
    """What follows a part up to the next home is no padding if the part does not fill its home."""
    shapes = {"a": (8, 1), "b": (8,)}
    total, expected = Total(), {home: torch.zeros(shape) for home, shape in shapes.items()}
    for index, sizes in enumerate((narrow, shapes)):
        plan = tuple(
            Row(home, corner(part), home, corner(part), shapes[home])
            for home, part in sizes.items()
        )
        tensors = update(plan, index, flat=True)
        fold(total, RowParts(plan, tensors, Terms(1.0)), (str(index),))
        for home, value in tensors.items():
            expected[home][: len(value)] += value
    for home, value in expected.items():
        assert torch.equal(total.sums[home].value, value)


def test_sums_of_an_interrupted_fold_are_zero(monkeypatch):
    total, expected = Total(), Total()
    with monkeypatch.context() as patch:
        patch.setattr(Compiled, "count", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fold(total, whole_update(0), ("a",))
    total.settle()
    for one in (total, expected):
        fold(one, whole_update(1), ("b",))
    assert bits(total) == bits(expected)


def interrupt(*given):
    raise KeyboardInterrupt


def test_an_update_that_does_not_fit_adds_nothing():
    total = Total(most=3)
    fold(total, RowParts(WHOLE, update(WHOLE, 0, flat=True), Terms(1.0)), ("a",))
    wrong = (Row("a", corner((5, 3)), "a", corner((5, 3)), (5, 4)),)
    with pytest.raises(ValueError, match="do not fit a home of shape"):
        fold(total, RowParts(wrong, update(wrong, 1, flat=True), Terms(1.0)), ("b",))
    assert torch.equal(total.sums["a"].value, update(WHOLE, 0, flat=True)["a"])
    assert list(total.seen) == [("a",)]
