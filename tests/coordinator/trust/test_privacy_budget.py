"""The accountant: known numbers, its properties, and Google's dp-accounting as an oracle."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.trust.privacy_budget import (
    add_round,
    compute_costs,
    compute_epsilon,
    compute_gaussian_epsilon,
    log_delta,
    mills_ratio,
)

DELTA = 1e-5
MULTIPLIERS = st.floats(-3, 3).map(lambda power: 10.0**power)
DELTAS = st.floats(-300, -0.01).map(lambda power: 10.0**power)


def after(rounds: int, noise: float) -> float:
    return compute_epsilon({"a": rounds * noise**-2}, DELTA)


def test_noise_as_large_as_the_change_gives_the_published_epsilon() -> None:
    assert compute_gaussian_epsilon(1.0, DELTA) == pytest.approx(4.377178095681, rel=1e-12)


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
def test_epsilon_solves_the_equation_of_balle_and_wang(mu: float) -> None:
    """Theorem 8: delta = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)."""

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    found = compute_gaussian_epsilon(mu, DELTA)
    solved = phi(mu / 2 - found / mu) - math.exp(found) * phi(-mu / 2 - found / mu)
    assert solved == pytest.approx(DELTA, rel=1e-6)


def test_epsilon_is_zero_where_the_noise_alone_keeps_delta() -> None:
    """At epsilon 0 delta is 2 Phi(mu / 2) - 1, the total variation."""
    delta = 2 * NormalDist().cdf(0.05) - 1
    assert compute_gaussian_epsilon(0.1, delta * (1 + 1e-9)) == 0.0
    assert 0 < compute_gaussian_epsilon(0.1, delta * (1 - 1e-9)) < 1e-8


@pytest.mark.parametrize(
    ("x", "ratio"),
    [(0.0, math.sqrt(math.pi / 2)), (1.0, 0.655679542418798), (1e9, 1e-9)],
)
def test_the_mills_ratio_has_its_known_values(x: float, ratio: float) -> None:
    assert mills_ratio(x) == pytest.approx(ratio, rel=1e-14)


def test_the_two_formulas_of_the_mills_ratio_meet() -> None:
    assert mills_ratio(math.nextafter(5, 0)) == pytest.approx(mills_ratio(5.0), rel=1e-14)


@given(MULTIPLIERS, st.floats(1 + 1e-9, 10), DELTAS)
def test_epsilon_grows_with_mu_and_with_a_smaller_delta(
    mu: float, factor: float, delta: float
) -> None:
    found = compute_gaussian_epsilon(mu, delta)
    assert found <= compute_gaussian_epsilon(mu * factor, delta)
    assert found <= compute_gaussian_epsilon(mu, delta / factor)


@given(MULTIPLIERS, DELTAS)
@example(0.01, 1e-5)  # log_delta is rounded up at the result of the bisection
def test_epsilon_is_never_too_small_and_hardly_too_large(mu: float, delta: float) -> None:
    found = compute_gaussian_epsilon(mu, delta)
    assert log_delta(found, mu) <= math.log(delta)
    if found > 1e-9:
        assert log_delta(found * (1 - 1e-9), mu) > math.log(delta)


@pytest.mark.parametrize("delta", [0.1, DELTA, 1e-15, 1e-300])
@pytest.mark.parametrize("noise", [0.001, 0.1, 1.0, 1.3, 4.0, 100.0])
def test_epsilon_is_that_of_the_library(noise: float, delta: float) -> None:
    accounting = pytest.importorskip("dp_accounting")
    known = accounting.get_epsilon_gaussian(noise, delta)
    assert compute_gaussian_epsilon(1 / noise, delta) == pytest.approx(known, rel=1e-9, abs=1e-11)


@pytest.mark.parametrize(("rounds", "noise"), [(1, 1.0), (10, 1.1), (50, 4.0)])
def test_rounds_compose_as_in_the_accountants_of_the_library(rounds: int, noise: float) -> None:
    """Epsilon is close to the numeric accountant, never above that with Renyi divergences."""
    accounting = pytest.importorskip("dp_accounting")
    event = accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(noise), rounds)
    relation = accounting.NeighboringRelation.REPLACE_SPECIAL
    numeric = (
        accounting.pld.PLDAccountant(neighboring_relation=relation)
        .compose(event)
        .get_epsilon(DELTA)
    )
    renyi = (
        accounting.rdp.RdpAccountant(neighboring_relation=relation)
        .compose(event)
        .get_epsilon(DELTA)
    )
    assert after(rounds, noise) == pytest.approx(numeric, rel=1e-3)
    assert after(rounds, noise) <= renyi


def test_epsilon_grows_with_every_round_and_falls_with_noise() -> None:
    found = [after(rounds, 1.0) for rounds in range(6)]
    assert found[0] == 0.0
    assert found == sorted(set(found))
    assert after(5, 2.0) < after(5, 1.0)


def test_the_most_exposed_device_counts() -> None:
    assert compute_epsilon({"a": 1.0, "b": 3.0, "c": 0.0}, DELTA) == after(3, 1.0)


def test_two_updates_in_one_sum_cost_as_much_as_one_of_twice_the_size() -> None:
    """A sensitivity of 2 with noise 2 is a multiplier of 1."""
    assert compute_costs([("a", 1), ("a", 2), ("b", 1)], 2.0) == {"a": 1.0, "b": 0.25}


def test_the_costs_after_another_round_are_known_before_it() -> None:
    assert add_round({}, 2.0) == {"": 0.25}
    assert add_round({"a": 1.0, "b": 0.5}, 2.0) == {"a": 1.25, "b": 0.75}
