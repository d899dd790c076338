"""Several updates are added in one pass, with the same bits as one after the other."""

from __future__ import annotations

import sys

import pytest
import torch

from federated.engine import blockwise_sums, fused_addition
from federated.engine.aggregate import Total, fold
from federated.engine.fused_addition import add_fused, load_fused
from federated.engine.update_contributions import RowParts, Terms
from models.slicing import Row, corner

SIZE = 1003  # not a multiple of a vector


@pytest.fixture
def fresh():
    load_fused.cache_clear()
    yield
    load_fused.cache_clear()


def draw(count):
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("count", range(1, 10))
def test_the_bits_are_those_of_pytorch(count):
    pytest.importorskip("numba")
    fused = load_fused()
    assert fused
    start, *values = draw(count + 1)
    factors = [0.1 + index / 3 for index in range(count)]
    expected, found = start.clone(), start.clone()
    for value, factor in zip(values, factors, strict=True):
        expected.add_(value, alpha=factor)
    add_fused(fused, found, values, factors)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_the_first_updates_take_the_place_of_any_values_with_the_bits_of_a_sum_from_zero(count):
    """Zeros of both signs included: 0 + -0 is 0."""
    pytest.importorskip("numba")
    fused = load_fused()
    assert fused
    values = list(draw(count))
    values[0][:500], values[0][:500:2] = 0.0, -0.0
    expected, found = torch.zeros(SIZE), torch.full((SIZE,), torch.nan)
    for value in values:
        expected.add_(value, alpha=0.3)
    add_fused(fused, found, values, [0.3] * count, store=True)
    assert found.numpy().tobytes() == expected.numpy().tobytes()


def test_without_numba_pytorch_adds(monkeypatch, fresh):
    monkeypatch.setitem(sys.modules, "numba", None)
    assert load_fused() is None


def test_numba_is_not_used_where_it_rounds_differently(monkeypatch, fresh, caplog):
    pytest.importorskip("numba")
    monkeypatch.setattr(fused_addition, "add_four", lambda total, values, factors, store: None)
    assert load_fused() is None
    assert "rounds differently" in caplog.text


# two tensors that go to two places of one sum, and two that go to the same place
APART = (
    Row("a", corner((300,)), "h", ((0, 300),), (700,)),
    Row("b", corner((300,)), "h", ((300, 600),), (700,)),
)
SAME = (APART[0], Row("b", corner((300,)), "h", ((0, 300),), (700,)))
TABLE = (Row("a", corner((30, 10)), "h", ((0, 30), (0, 10)), (40, 20)),)


@pytest.mark.parametrize(
    ("rows", "own", "fuses"),
    [
        (APART, {}, True),
        (SAME, {}, False),
        (TABLE, {}, False),
        (APART, dict.fromkeys("ab", Terms(torch.arange(300) / 7)), False),
    ],
    ids=["apart", "same place", "inner columns", "weights of entries"],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_updates_are_fused_where_their_order_does_not_matter(
    monkeypatch, rows, own, fuses, threads
):
    pytest.importorskip("numba")
    monkeypatch.setattr(fused_addition, "LEAST", 1)
    monkeypatch.setattr(blockwise_sums, "BLOCK", 1 << 8)
    assert load_fused()  # which adds, to compare the bits
    calls = list[int]()

    def count(fused, total, values, factors, store):
        calls.append(len(values))
        add_fused(fused, total, values, factors, store)

    monkeypatch.setattr(fused_addition, "add_fused", count)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    found, expected = Total(most=8), Total()
    for index in range(5):
        flat = draw(3)[0].roll(index)
        shape = tuple(b for _, b in rows[0].here)
        tensors = {"a": flat[:300].view(shape), "b": flat[304:604]}
        for total in (found, expected):
            fold(total, RowParts(rows, tensors, Terms(1 / (3 + index)), own), (str(index),))
    for home, one in expected.sums.items():
        assert torch.equal(found.sums[home].value, one.value)
    assert bool(calls) == fuses
    assert set(calls) <= {5}
