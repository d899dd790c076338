"""Schedules: by default a fraction of a run's rounds, or rounds if configured, so that a short run
includes every mechanism.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coordinator.views.method_pages import describe_method, render_method
from federated.method import SCHEDULE, configure, round_at
from federated.methods.catalogue import METHODS, find_method
from federated.methods.fedavg import learning_rate
from models.named_network import network
from models.submodel_building import initial
from tests.support.short_run import apart, train_briefly

NET = network("resnet-small", (1, 8, 8), 10)


def recipes(name, rounds, **given):
    """Return the recipe of the largest submodel in each round of a run."""
    chosen = find_method(name)
    settings = configure(chosen, given, rounds=rounds)
    menu = chosen.menu(NET, settings)
    state = chosen.start(initial(NET, 0, chosen.features), menu, settings)
    return [chosen.recipe(replace(state, round=done), menu[-1]) for done in range(rounds)]


# ---- the convention ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "rounds", "found"),
    [(0.3, 20, 6), (0.3, 1000, 300), (300, 20, 300), (1, 20, 1), (0, 20, 0), (0.999, 20, 20)],
)
def test_a_number_below_1_is_a_share_of_the_run(when, rounds, found):
    assert round_at(when, rounds) == found


@pytest.mark.parametrize(
    ("name", "key"), [*((name, "milestones") for name in METHODS), ("depthfl", "ramp")]
)
def test_the_convention_is_shown_with_each_schedule(name, key):
    assert describe_method(name)["settings"][key]["schedule"] == SCHEDULE
    assert "below 1: a fraction of the run's rounds" in " ".join(
        render_method(describe_method(name)).split()
    )


def test_no_default_is_a_number_of_rounds():
    for name in METHODS:
        for key, known in find_method(name).settings.items():
            values = known.default if isinstance(known.default, tuple) else (known.default,)
            assert not known.schedule or all(value < 1 for value in values), f"{name}: {key}"


# ---- learning rates ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "given", "first", "second"),
    [
        (20, {}, 7, 13),
        (300, {}, 100, 200),
        (90, {}, 30, 60),
        (500, {"milestones": [100, 200]}, 100, 200),
    ],
)
def test_scalefl_lowers_its_rate_at_each_third_of_the_run_or_at_the_rounds_given(
    rounds, given, first, second
):
    settings = configure(find_method("scalefl"), given, rounds=rounds)
    found = [
        learning_rate(settings, number)
        for number in (1, first - 1, first, second - 1, second, rounds)
    ]
    assert found == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


@pytest.mark.parametrize(
    ("rounds", "found"), [(1, [0.1]), (2, [0.1, 0.01]), (3, [0.1, 0.01, 0.001])]
)
def test_every_rate_lasts_a_round_in_a_short_run(rounds, found):
    settings = configure(find_method("nefl-w"), {}, rounds=rounds)
    assert [learning_rate(settings, number) for number in range(1, rounds + 1)] == pytest.approx(
        found
    )


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"warmup": 3}, [0.25, 0.5, 0.75, 1, 1, 1, 1]),
        ({"warmup": 0.3}, [1 / 3, 2 / 3, 1, 1, 1, 1, 1]),
        ({"cosine": True}, [1, 0.9504844, 0.8117449, 0.6112605, 0.3887395, 0.1882551, 0.0495156]),
        ({"warmup": 3, "cosine": True}, [0.25, 0.5, 0.75, 1, 0.8535534, 0.5, 0.1464466]),
        ({"cosine": True, "milestones": [5]}, [1, 0.9504844, 0.8117449, 0.6112605, 0.0388740]),
    ],
)
def test_the_rate_rises_in_the_warm_up_and_falls_along_a_cosine(given, found):
    """(1 + cos(pi k / n)) / 2 in round k of n after the warm-up, counted from 0."""
    settings = configure(find_method("fedavg"), {"lr": 1.0, **given}, rounds=7)
    rates = [learning_rate(settings, number) for number in range(1, len(found) + 1)]
    assert rates == pytest.approx(found, abs=1e-6)


def test_a_run_of_unknown_length_or_with_more_rounds_keeps_a_rate_that_does_not_rise():
    settings = configure(find_method("fedavg"), {"lr": 1.0, "cosine": True}, rounds=0)
    assert learning_rate(settings, 9) == 1.0
    settings = configure(find_method("fedavg"), {"lr": 1.0, "cosine": True}, rounds=4)
    assert learning_rate(settings, 6) == 0.0


# ---- distillation --------------------------------------------------------------------------------


def test_the_exits_of_depthfl_teach_each_other_with_full_weight_after_a_short_runs_third():
    weights = [recipe.options["weight"] for recipe in recipes("depthfl", 20)]
    assert weights[0] < weights[4] < 1.0
    assert weights[5:] == [1.0] * 15
    assert max(
        recipe.options["weight"] for recipe in recipes("depthfl", 20, ramp=300)
    ) == pytest.approx(0.0128, abs=1e-4)


def test_the_last_exit_of_scalefl_teaches_in_most_of_a_short_run():
    assert [recipe.options["gamma"] for recipe in recipes("scalefl", 20)] == [0.0] * 6 + [0.05] * 14


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "off"),
    [("depthfl", {"distillation": 0}), ("fjord", {"kd": False}), ("scalefl", {"gamma": 0})],
)
def test_distillation_moves_the_weights_of_a_run_of_three_rounds(tmp_path, name, off):
    """Two runs with the same seed differ only in distillation."""
    on = train_briefly(tmp_path / "on", name, 3)
    assert all(
        torch.equal(on[home], again)
        for home, again in train_briefly(tmp_path / "again", name, 3).items()
    )
    assert apart(on, train_briefly(tmp_path / "off", name, 3, **off)) > 1e-5


@pytest.mark.slow
def test_the_ramp_of_depthfl_is_felt_in_a_run_of_three_rounds(tmp_path):
    """By default it ends in the first; the authors' 300 rounds leave distillation a hundredth of
    its weight.
    """
    off, default, authors = (
        train_briefly(tmp_path / str(i), "depthfl", 3, **given)
        for i, given in enumerate(({"distillation": 0}, {}, {"ramp": 300}))
    )
    assert apart(default, off) > 10 * apart(authors, off)


@pytest.mark.slow
def test_the_rate_of_scalefl_falls_in_a_run_of_three_rounds(tmp_path):
    assert (
        apart(
            train_briefly(tmp_path / "shares", "scalefl", 3),
            train_briefly(tmp_path / "rounds", "scalefl", 3, milestones=[100, 200]),
        )
        > 1e-3
    )
