"""Each attack's formula on changes of two coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from federated.device.attacks import formulas
from federated.device.attacks.formulas import Changes


def vector(*values: float) -> Any:
    return np.array(values, np.float32)


# mean (3, 2), standard deviation (1, 0)
OF_SAMPLES = Changes(vector(3, 4), vector(0, 5), [vector(2, 2), vector(4, 2)])


@pytest.mark.parametrize(
    ("formula", "strength", "sent"),
    [
        (formulas.flip_sign, 5, (-15, -20)),
        (formulas.scale_up, 20, (60, 80)),
        (formulas.replace_with_shuffled, 2, (0, 10)),
        (formulas.plant_backdoor, 20, (3, 104)),
        (formulas.deviate_a_little, 1.5, (1.5, 2)),
        (formulas.oppose_mean, 0.5, (-1.5, -1)),
    ],
)
def test_the_formula_of_an_attack(formula: Any, strength: float, sent: tuple[float, ...]) -> None:
    np.testing.assert_array_equal(formula(OF_SAMPLES, strength), vector(*sent))


def test_an_attack_within_bounds_has_the_norm_of_the_honest_change() -> None:
    """(3, 4) + 2 (0, 4) = (3, 12), which is longer than 5; (3, 4) + (0, -1) is not."""
    long = formulas.hide_within_bounds(Changes(vector(3, 4), vector(0, 4)), 2)
    np.testing.assert_allclose(long, vector(3, 12) * 5 / np.sqrt(153), rtol=1e-6)
    assert np.linalg.norm(long) == pytest.approx(5)
    short = formulas.hide_within_bounds(Changes(vector(3, 4), vector(0, -1)), 1)
    np.testing.assert_array_equal(short, vector(3, 3))


def test_min_max_goes_as_far_as_the_two_farthest_changes_are_apart() -> None:
    """Two changes at 2 and 4: mean 3, deviation 1. The farther one, at 4, is 2 away from 2."""
    np.testing.assert_allclose(formulas.maximise_within_spread(OF_SAMPLES, 1), vector(2, 2))
    half = formulas.maximise_within_spread(OF_SAMPLES, 0.5)
    np.testing.assert_allclose(half, vector(2.5, 2))


def test_min_max_stays_within_the_spread_and_reaches_it() -> None:
    rng = np.random.default_rng(0)
    several = [rng.normal(size=30).astype(np.float32) for _ in range(5)]
    changes = Changes(several[0], several[0], several)
    sent = formulas.maximise_within_spread(changes, 1)
    spread = max(float(np.linalg.norm(a - b)) for a in several for b in several)
    assert max(float(np.linalg.norm(sent - a)) for a in several) == pytest.approx(spread, rel=1e-5)


def test_min_max_sends_the_mean_of_equal_changes() -> None:
    same = Changes(vector(1, 2), vector(1, 2), [vector(1, 2)] * 3)
    np.testing.assert_array_equal(formulas.maximise_within_spread(same, 1), vector(1, 2))
