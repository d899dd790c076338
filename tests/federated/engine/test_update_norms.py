"""Norms of whole changes, by hand."""

from __future__ import annotations

import pytest
import torch

from federated.engine.aggregate import Sum
from federated.engine.update_contributions import Part
from federated.engine.update_norms import (
    add_missing_homes,
    change_norm,
    clip_parts,
    count_once,
    subtract_old,
)
from federated.method import Settings, State

OLD = {"w": torch.tensor([1.0, 1.0]), "b": torch.tensor([0.0])}


def parts(w, b, weight=7.0):
    return [
        Part("w", ((0, 2),), (2,), torch.tensor(w), weight),
        Part("b", ((0, 1),), (1,), torch.tensor(b), weight),
    ]


def test_a_change_is_measured_over_all_tensors_together():
    """(2, 0) and (1): sqrt(4 + 0 + 4)."""
    assert change_norm(parts([3.0, 1.0], [2.0]), OLD) == pytest.approx(8**0.5)


def test_a_change_that_is_too_long_keeps_its_direction():
    """(3, 0, 4) of length 5 becomes (0.6, 0, 0.8) of length 1; weights stay."""
    found = clip_parts(parts([4.0, 1.0], [4.0]), OLD, 1.0)
    assert found[0].value.tolist() == pytest.approx([1.6, 1.0])
    assert found[1].value.tolist() == pytest.approx([0.8])
    assert [part.weight for part in found] == [7.0, 7.0]


def test_a_change_that_is_short_enough_stays_bit_for_bit():
    given = parts([1.1, 1.0], [0.3])
    assert clip_parts(given, OLD, 1.0) == given


def test_rows_that_a_device_does_not_give_do_not_count():
    rows = Part("w", ((0, 2),), (2,), torch.tensor([9.0, 2.0]), torch.tensor([0.0, 1.0]))
    assert subtract_old(rows, OLD).tolist() == [0.0, 1.0]
    assert change_norm([rows], OLD) == 1.0


def test_every_update_counts_once():
    assert count_once(parts([1.0, 1.0], [0.0], weight=2.0**40)[0]).weight == 1.0
    assert count_once(
        Part("w", ((0, 2),), (2,), torch.zeros(2), torch.tensor([0.0, 5.0]))
    ).weight.tolist() == [0.0, 1.0]


def test_the_home_of_a_group_is_measured_against_what_it_reads():
    """`w@small` is not written yet: it reads the corner of `w`, and goes by its dtype once it
    is.
    """
    part = Part("w@small", ((0, 1),), (1,), torch.tensor([4.0]))
    assert change_norm([part], OLD) == 3.0
    state = add_missing_homes(
        State(0, OLD, Settings()),
        {"w@small": Sum(torch.zeros(1, dtype=torch.float64)), "w": Sum(torch.zeros(2))},
    )
    assert state.tensors["w@small"].tolist() == [1.0]
    assert state.tensors["w@small"].dtype == torch.float32
    assert state.tensors["w"] is OLD["w"]
