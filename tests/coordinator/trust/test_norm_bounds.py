"""Norm bounds, derived by hand: they depend on earlier rounds only."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.trust.norm_and_privacy_tables import WINDOW, ChangeNorm
from coordinator.trust.norm_bounds import LEAST, Bound, check_change, compute_bounds, measure_change
from federated.errors import Refused
from federated.task import Update
from models.menu import menu
from models.named_network import network

SMALL, LARGE = menu(network("mlp", (4,), 3), (0.5, 1.0), (1,))


def known(
    *norms: float, round: int = 1, submodel: str = "s", kind: str = "weights"
) -> list[ChangeNorm]:
    return [ChangeNorm(round, f"a{i}", submodel, kind, norm) for i, norm in enumerate(norms)]


def update(**tensors: np.ndarray) -> Update:
    return Update("r", 2, 1, "a", "train", SMALL, "r1", 5, 1, tensors)


def test_a_bound_is_a_multiple_of_the_median_of_earlier_rounds() -> None:
    found = compute_bounds([*known(1.0, 2.0, 3.0), *known(4.0, 900.0, round=2)], 3, 10.0)
    assert found == {("s", "weights"): Bound(10.0, 3.0, 3.0, 5, (1, 2), (2, 2, 1))}
    assert found["s", "weights"].most == 30.0


def test_fewer_than_half_of_the_updates_cannot_set_the_bound_at_will() -> None:
    honest, lies = [1.0, 1.1, 1.2, 1.3], [1e30, 1e30, 1e30]
    assert compute_bounds(known(*honest, *lies), 2, 10.0)["s", "weights"].most == pytest.approx(
        13.0
    )


def test_the_current_round_and_rounds_beyond_the_window_do_not_count() -> None:
    """The first update of a round has the same bound as the last."""
    present = known(*[1.0] * LEAST, round=20)
    assert compute_bounds(present, 20, 10.0) == {}
    assert compute_bounds(present, 21, 10.0)
    assert compute_bounds(present, 20 + WINDOW, 10.0)
    assert compute_bounds(present, 21 + WINDOW, 10.0) == {}


def test_too_few_or_zero_norms_give_no_bound() -> None:
    assert compute_bounds(known(*[1.0] * (LEAST - 1)), 2, 10.0) == {}
    assert compute_bounds(known(*[0.0] * LEAST), 2, 10.0) == {}
    assert compute_bounds(known(*[1.0] * LEAST), 2, 0.0) == {}


def test_submodels_and_kinds_have_separate_bounds() -> None:
    rows = [
        *known(*[1.0] * 6),
        *known(*[5.0] * 5, submodel="t"),
        *known(*[7.0] * 5, kind="statistics"),
    ]
    assert {key: bound.most for key, bound in compute_bounds(rows, 2, 2.0).items()} == {
        ("s", "weights"): 2,
        ("t", "weights"): 10,
        ("s", "statistics"): 14,
    }


def test_a_converged_device_that_is_alone_may_move_as_far_as_the_fleet() -> None:
    """0.84 is 84 times its own median, and 0.7 times that of the others, whose bound applies."""
    lone, others = (
        known(*[0.01] * 5, submodel=SMALL.plain.name),
        known(*[1.2] * 6, submodel=LARGE.plain.name),
    )
    found = compute_bounds([*lone, *others], 2, 3.0)
    check_change(update(), {"weights": 0.84}, found)
    with pytest.raises(
        Refused,
        match=r"at most 3.6 \(3 times 1.2, the median of the updates of all submodels in rounds 1 "
        r"to 1\), found 3.7",
    ):
        check_change(update(), {"weights": 3.7}, found)


def test_a_submodel_that_moves_little_does_not_lower_the_bound_of_another() -> None:
    rows = [*known(*[0.01] * 9, submodel="s"), *known(*[1.2] * 5, submodel="t")]
    assert compute_bounds(rows, 2, 3.0)["t", "weights"].most == pytest.approx(3.6)


def test_attackers_that_sent_half_of_a_submodels_norms_do_not_set_the_limit_of_clipping() -> None:
    """One device alone, one of two, and one of three that answers as often as both others."""
    others = [row for round in range(1, 6) for row in known(*[1.0] * 9, round=round)]
    large = [row for round in range(1, 6) for row in known(*[5.0] * 3, round=round, submodel="t")]
    assert compute_bounds([*others, *large], 6, 1.0)["t", "weights"].limit(1) == 5.0
    assert compute_bounds([*others, *large], 6, 1.0)["t", "weights"].limit(2) == 1.0
    for honest in (0, 1, 2):
        lies = [ChangeNorm(round, "liar", "t", "weights", 1e9) for round in range(1, 7)]
        rare = [row for row in large if row.agent in ("a0", "a1")[:honest] and row.round <= 3]
        found = compute_bounds([*others, *lies, *rare], 7, 1.0)["t", "weights"]
        assert found.limit(1) == 1.0
        assert found.limit(0) == found.median


def test_a_change_is_the_received_minus_the_sent_tensor() -> None:
    """Weights change by (3, 4), a statistic by 2; a variate is a change already."""
    one = np.ones(1, np.float32)
    made = update(
        w=np.array([4.0], np.float32),
        b=np.array([5.0], np.float32),
        **{"n.running_mean": 3 * one, "c/w": 6 * one},
    )
    sent = {"w": one, "b": one, "n.running_mean": one, "c/w": 100 * one}
    assert measure_change(made, sent) == {"weights": 5.0, "statistics": 2.0, "variates": 6.0}


def test_a_refusal_shows_the_norm_the_bound_and_its_derivation() -> None:
    name = SMALL.plain.name
    limits = compute_bounds(known(*[0.5] * 6, submodel=name), 2, 10.0)
    made = update(w=np.array([6.0], np.float32))
    words = (
        r"update of a: expected a change of weights of at most 5 \(10 times 0\.5, the median of 6 "
        r"updates of its submodel in rounds 1 to 1\), found 6"
    )
    with pytest.raises(Refused, match=words):
        check_change(made, {"weights": 6.0}, limits)
    check_change(made, {"weights": 5.0}, limits)
    check_change(made, {"weights": 6.0}, {})
    check_change(made, {"variates": 6.0}, limits)
