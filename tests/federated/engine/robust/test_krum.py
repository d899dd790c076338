"""Krum by hand, and against a plain loop: whose updates are nearest to each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from federated.engine.robust.arithmetic import pick_nearest
from federated.engine.robust.catalogue import RULES
from federated.engine.robust.rule import combine
from federated.engine.update_part_files import PartStore
from tests.support.stored_updates import OLD, corner, part, result, store_parts, whole


def test_krum_by_hand(tmp_path):
    """On a line at 0, 1, 3, 4 and 90, f = 1: each looks at its 2 nearest. Sums of squares: 10, 5,
    5, 10 and far more; of equal ones the first.
    """
    kept = store_parts(tmp_path, *(part([v]) for v in (0.0, 1.0, 3.0, 4.0, 90.0)))
    old = {"w": torch.tensor([7.0])}
    assert result(kept, old, "krum", 1).tolist() == [1.0]
    assert result(kept, old, "multikrum", 1).tolist() == [2.0]


def test_krum_looks_at_whole_updates(tmp_path):
    """The third update is in the middle of each tensor, but over both tensors it is not nearest to
    any other.
    """
    pairs = [(0.0, 0.0), (0.1, 0.1), (0.2, 0.0), (0.1, 9.0), (9.0, 0.1)]
    kept = store_parts(tmp_path, *([part([a]), part([b], home="b")] for a, b in pairs))
    old = {"w": torch.tensor([0.0]), "b": torch.tensor([0.0])}
    assert result(kept, old, "krum", 1, "b").tolist() == [pytest.approx(0.1)]
    assert result(kept, old, "krum", 1).tolist() == [pytest.approx(0.1)]


def test_krum_compares_equal_submodels_alone_and_leaves_small_groups_out(tmp_path):
    """Five hold the core, of whom Krum chooses 2.0; the two that hold all are too few to outvote
    one.
    """
    kept = store_parts(
        tmp_path,
        *(corner(v) for v in (1.0, 2.0, 2.0, 3.0, 900.0)),
        whole(5.0, 5.0, 5.0, 5.0),
        whole(5.0, 5.0, 5.0, 5.0),
    )
    old = {"w": torch.full((2, 2), 0.5)}
    assert result(kept, old, "krum", 1).tolist() == [[2.0, 0.5], [0.5, 0.5]]
    assert len(combine(RULES["krum"], kept, old, 1).seen) == 7


def test_overlapping_choices_of_two_groups_are_averaged_by_their_numbers_of_devices(tmp_path):
    """Three quarters of 2 and a quarter of 6."""
    kept = store_parts(
        tmp_path, *(corner(2.0) for _ in range(9)), *(whole(6.0, 5.0, 6.0, 7.0) for _ in range(3))
    )
    assert result(kept, OLD, "krum", 0).tolist() == [[3.0, 5.0], [6.0, 7.0]]


def test_krum_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    points, f = rng.standard_normal((9, 4)), 2
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    scores = [sum(sorted(squares[i][j] for j in range(9) if j != i)[: 9 - f - 2]) for i in range(9)]
    assert pick_nearest(squares, f, 3) == sorted(np.argsort(scores)[:3].tolist())


def test_a_device_cannot_outvote_its_group_under_krum_by_answering_twice(tmp_path):
    """Five honest ones far from each other; two equal lies of one device would be each other's
    nearest.
    """
    kept = PartStore(tmp_path)
    for name, round, value in (
        ("liar", 1, 100.0),
        *((f"a{i}", 2, 10.0 * i) for i in range(4)),
        ("liar", 2, 100.0),
    ):
        kept.fold([corner(value)], (name, round))
    kept.keep_newest()
    assert [key[0] for key in kept.counting] == ["a0", "a1", "a2", "a3", "liar"]
