"""Folding: bands by hand and against a dense count; dump and load bit for bit."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.engine.aggregate import Total, bands, dump, fold, load, mean, sum_extra
from federated.engine.update_contributions import Part


def part(value, where=None, shape=None, weight=1.0, home="w", **rest):
    value = torch.as_tensor(value)
    shape = tuple(value.shape) if shape is None else shape
    return Part(
        home,
        tuple((0, n) for n in value.shape) if where is None else where,
        shape,
        value,
        weight,
        **rest,
    )


def fold_parts(*parts):
    total = Total()
    for index, one in enumerate(parts):
        assert fold(total, [one], (f"a{index}",))
    return total


def same(a: Total, b: Total) -> bool:
    """Return True if keys, values and weights are equal bit for bit."""
    texts = dump(a)[1] == dump(b)[1]
    return texts and all(
        torch.equal(a.sums[h].value, b.sums[h].value)
        and a.sums[h].value.dtype == b.sums[h].value.dtype
        for h in a.sums
    )


def test_a_weighted_mean_by_hand():
    assert mean(fold_parts(part([1.0, 2.0]), part([5.0, 6.0], weight=3.0)).sums["w"]).tolist() == [
        4.0,
        5.0,
    ]


def test_bands_of_two_corners():
    """1 x 1 under 2 x 2: three quarters of the larger stand alone."""
    total = fold_parts(
        part([[4.0]], shape=(2, 2), weight=1.0), part([[1.0, 2.0], [3.0, 8.0]], weight=3.0)
    ).sums["w"]
    assert dict(bands(total)) == {
        ((0, 1), (0, 1)): 4.0,
        ((0, 1), (1, 2)): 3.0,
        ((1, 2), (0, 1)): 3.0,
        ((1, 2), (1, 2)): 3.0,
    }
    assert mean(total).tolist() == [[1.75, 2.0], [3.0, 8.0]]


def test_the_uncovered_keeps_its_value_bit_for_bit():
    old = torch.tensor([0.1, 0.2, 0.3])
    found = mean(fold_parts(part([7.0], where=((1, 2),), shape=(3,))).sums["w"], old)
    assert found.tolist() == [old[0].item(), 7.0, old[2].item()]
    assert old.tolist() == torch.tensor([0.1, 0.2, 0.3]).tolist()


def test_a_weight_of_zero_covers_nothing():
    assert mean(fold_parts(part([7.0], weight=0.0)).sums["w"], torch.tensor([3.0])).tolist() == [
        3.0
    ]


def test_rows_are_weighed_one_by_one():
    """Both updates weigh row 0, the second weighs row 1, none weighs row 2; a narrower part is
    folded as well.
    """
    total = fold_parts(
        part([[1.0], [1.0], [1.0]], shape=(3, 2), weight=torch.tensor([1.0, 0.0, 0.0])),
        part([[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]], weight=torch.tensor([1.0, 1.0, 0.0])),
    )
    assert mean(total.sums["w"], torch.full((3, 2), 9.0)).tolist() == [
        [2.0, 3.0],
        [3.0, 3.0],
        [9.0, 9.0],
    ]


def test_rows_and_numbers_mix():
    total = fold_parts(part([1.0, 1.0]), part([3.0, 3.0], weight=torch.tensor([0.0, 1.0])))
    assert mean(total.sums["w"]).tolist() == [1.0, 2.0]


def test_rows_of_a_rectangle_that_does_not_start_at_zero():
    """The rows of a band are counted from the rectangle's own start."""
    total = fold_parts(
        part([5.0, 7.0], where=((1, 3),), shape=(3,), weight=torch.tensor([0.0, 1.0])),
        part([1.0, 1.0, 1.0]),
    )
    assert mean(total.sums["w"]).tolist() == [1.0, 1.0, 4.0]


def test_scale_enters_the_value_and_not_the_weight():
    total = fold_parts(
        part([2.0], scale=3.0, weight=2.0, extra=(5.0, 1.0)), part([4.0], extra=(7.0, 1.0))
    )
    assert mean(total.sums["w"]).tolist() == [pytest.approx(16 / 3)]
    assert (sum_extra(total.sums["w"], 1), sum_extra(total.sums["w"], 2)) == (12.0, 2.0)


def test_scalars_without_axes():
    assert (
        mean(fold_parts(part(torch.tensor(2.0)), part(torch.tensor(4.0))).sums["w"]).item() == 3.0
    )


def test_integers_are_summed_wide_and_truncate():
    total = fold_parts(part(torch.tensor([10])), part(torch.tensor([21]), weight=3.0))
    assert total.sums["w"].value.dtype == torch.float64
    assert mean(total.sums["w"], torch.tensor([0])).tolist() == [18]


def test_a_key_is_folded_once():
    total = fold_parts(part([1.0]))
    assert not fold(total, [part([5.0])], ("a0",))
    assert mean(total.sums["w"]).tolist() == [1.0]


@pytest.mark.parametrize(
    "bad",
    [
        part([1.0, 2.0], shape=(3,)),
        part([1.0], where=((2, 3),), shape=(2,)),
        part([1.0], where=((0, 2),), shape=(2,)),
        part([1.0, 2.0], weight=torch.ones(3)),
        part([1.0, 2.0], extra=(1.0,)),
        part([[1.0, 2.0]]),
        part([1.0, 2.0], weight=-1.0),
        part([1.0, 2.0], weight=torch.tensor([1.0, torch.nan])),
    ],
)
def test_a_part_that_does_not_fit_adds_nothing_at_all(bad):
    """Not even the good parts beside it; the key stays free."""
    total = fold_parts(part([1.0, 1.0]))
    before = total.sums["w"].value.clone()
    with pytest.raises(ValueError, match=r"part of w|weights of parts"):
        fold(total, [part([1.0, 1.0]), bad], ("late",))
    assert torch.equal(total.sums["w"].value, before)
    assert fold(total, [part([1.0, 1.0])], ("late",))


def test_an_iterator_that_fails_adds_nothing():
    def broken():
        yield part([1.0])
        raise RuntimeError("midway")

    total = Total()
    with pytest.raises(RuntimeError, match="midway"):
        fold(total, broken(), ("a",))
    assert not total.sums
    assert not total.seen


def test_a_mean_takes_the_place_of_its_sum():
    one = fold_parts(part([[2.0]], shape=(2, 3)), part([[4.0, 6.0]], shape=(2, 3))).sums["w"]
    found = mean(one, torch.full((2, 3), 9.0))
    assert found.tolist() == [[3.0, 6.0, 9.0], [9.0, 9.0, 9.0]]
    assert found.data_ptr() == one.value.data_ptr()
    with pytest.raises(ValueError, match="computed before"):
        mean(one)


def test_an_uncovered_mean_without_an_old_value_is_an_error():
    with pytest.raises(ValueError, match="no update covers"):
        mean(fold_parts(part([1.0], shape=(2,))).sums["w"])


def test_a_dump_is_plain_json_and_belongs_to_its_tensors():
    tensors, text = dump(fold_parts(part([1.0, 2.0], weight=torch.tensor([1.0, 0.1]))))
    assert json.loads(text)["seen"] == [["a0"]]
    with pytest.raises(ValueError, match="dumped total"):
        load({}, text)
    assert load(tensors, text).sums["w"].value is not tensors["w"]


def test_memory_is_one_model():
    """A hundred parts of five sizes leave one full-size sum and five rectangles."""
    total = Total()
    for index in range(100):
        n = 1 + index % 5
        fold(total, [part(torch.ones(n, n), shape=(5, 5))], (index,))
    assert total.sums["w"].value.numel() == 25
    assert len(total.sums["w"].cover) == 5


# ---- properties ----------------------------------------------------------------------------------


SHAPE = (4, 3)
whole = st.integers(-8, 8).map(float)


@st.composite
def anywhere(draw):
    """Return a part of a 4 x 3 home: any rectangle, small whole values, weights by number or by
    row, two extras.
    """
    where = tuple(
        tuple(sorted(draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))))
        for n in SHAPE
    )
    extents = [b - a for a, b in where]
    value = torch.tensor(
        draw(st.lists(whole, min_size=extents[0] * extents[1], max_size=extents[0] * extents[1]))
    ).reshape(extents)
    rows = st.lists(st.integers(0, 3).map(float), min_size=extents[0], max_size=extents[0]).map(
        lambda w: torch.tensor(w, dtype=torch.float64)
    )
    weight = draw(st.one_of(st.integers(0, 5).map(float), rows))
    return part(
        value,
        where,
        SHAPE,
        weight,
        home=draw(st.sampled_from(["w", "v"])),
        extra=(draw(whole), 1.0),
    )


def dense(parts, home):
    """Fold slowly, with a full map of counts."""
    top, count = torch.zeros(SHAPE, dtype=torch.float64), torch.zeros(SHAPE, dtype=torch.float64)
    for one in parts:
        if one.home == home:
            (a, b), (c, d) = one.where
            weight = one.weight[:, None] if isinstance(one.weight, torch.Tensor) else one.weight
            top[a:b, c:d] += one.value.double() * weight
            count[a:b, c:d] += weight
    return top, count


@settings(max_examples=150, deadline=None)
@given(st.lists(anywhere(), min_size=1, max_size=6))
def test_bands_agree_with_a_dense_count(parts):
    total = fold_parts(*parts)
    for home, one in total.sums.items():
        top, count = dense(parts, home)
        expected = torch.where(count > 0, top / count.clamp(min=1), 99.0)
        torch.testing.assert_close(
            mean(one, torch.full(SHAPE, 99.0)).double(), expected, rtol=1e-6, atol=1e-6
        )
        cells = [
            {(i, j) for i in range(*where[0]) for j in range(*where[1])} for where, _ in bands(one)
        ]
        assert all(not a & b for a, b in itertools.combinations(cells, 2)), "bands overlap"


@settings(max_examples=100, deadline=None)
@given(st.lists(anywhere(), min_size=1, max_size=6), st.integers(0, 6), st.floats(0.1, 1))
def test_a_total_is_resumed_bit_for_bit_after_a_crash(parts, cut, fraction):
    """A total that was dumped midway and loaded ends with the same bits; the values and weights
    cause rounding.
    """
    keyed = [
        (
            (f"a{n}", n),
            [
                Part(
                    p.home,
                    p.where,
                    p.shape,
                    p.value * fraction,
                    p.weight * fraction,
                    fraction,
                    p.extra,
                )
            ],
        )
        for n, p in enumerate(parts)
    ]
    straight, broken = Total(), Total()
    for key, ps in keyed:
        fold(straight, ps, key)
    for n, (key, ps) in enumerate(keyed):
        if n == cut:
            broken = load(*dump(broken))
        fold(broken, ps, key)
    assert same(straight, load(*dump(broken)))
