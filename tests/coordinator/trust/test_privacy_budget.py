"""The accountant against the library's own, over rounds, agents and restarts."""

from __future__ import annotations

import sys

import pytest

from coordinator.trust.privacy_budget import check_installed, costs, epsilon, more
from federated.errors import MissingExtra

accounting = pytest.importorskip("dp_accounting")
DELTA = 1e-5


def after(rounds: int, noise: float) -> float:
    return epsilon({"a": rounds * noise**-2}, DELTA)


def test_one_round_is_one_gaussian_mechanism() -> None:
    assert after(1, 1.3) == accounting.get_epsilon_gaussian(1.3, DELTA)


@pytest.mark.parametrize(("rounds", "noise"), [(1, 1.0), (10, 1.1), (50, 4.0)])
def test_rounds_add_up_as_the_accountants_of_the_library_say(rounds: int, noise: float) -> None:
    """The numeric accountant is near, and the one by Renyi divergences is never below."""
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


def test_the_device_of_which_most_was_told_counts() -> None:
    assert epsilon({"a": 1.0, "b": 3.0, "c": 0.0}, DELTA) == after(3, 1.0)


def test_two_updates_in_one_sum_tell_as_much_as_twice_the_change() -> None:
    """A sensitivity of 2 at noise 2: a multiplier of 1."""
    assert costs([("a", 1), ("a", 2), ("b", 1)], 2.0) == {"a": 1.0, "b": 0.25}


def test_what_another_round_could_tell_is_known_before_it() -> None:
    assert more({}, 2.0) == {"": 0.25}
    assert more({"a": 1.0, "b": 0.5}, 2.0) == {"a": 1.25, "b": 0.75}


def test_without_the_extra_a_private_run_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingExtra, match=r"pip install 'espalier\[private\]'"):
        check_installed()
