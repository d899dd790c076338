"""A user's method that contradicts itself is an error before or in its first round."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from coordinator.run.rounds import MAX_DISCARDED, check_finished, finish_round
from coordinator.run.runner import check_hooks
from coordinator.views.run_status import describe_status
from federated.engine.aggregate import Total
from federated.errors import ConfigError
from federated.method import Method, State, configure
from federated.methods.catalogue import METHODS, find_method
from federated.methods.fedavg import fedavg
from federated.task import Recipe
from federated.training.hooks import Hooks
from models.named_network import network
from models.submodel_building import initial
from tests.support.memory_federation import RUN, Member, digits, federate

HOOKS = Hooks("mine", open=print)
MINE = replace(fedavg(), name="mine", hooks=HOOKS)
BEFORE = State(3, {}, configure(fedavg(), {}))
DIVERGING = "tests.coordinator.run.test_runner:diverging"


def diverging() -> Method:
    """Return FedAvg with a coordinator that divides by zero."""
    base = fedavg()

    def finish(state: State, total: Total, rng: np.random.Generator) -> State:
        after = base.finish(state, total, rng)
        return replace(after, tensors={home: value / 0 for home, value in after.tensors.items()})

    return replace(base, name="diverging", finish=finish)


@pytest.mark.parametrize("name", [name for name in METHODS if find_method(name).hooks])
def test_the_hooks_of_every_method_match_its_recipes(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    chosen, net = find_method(name), network("preresnet", (1, 4, 4), 3)
    settings = configure(chosen, {}, rounds=10)
    menu = chosen.menu(net, settings)
    state = chosen.start(initial(net, 0, chosen.features), menu, settings)
    check_hooks(chosen, [chosen.recipe(state, one) for one in menu])
    assert not caplog.records


def test_a_recipe_that_names_hooks_which_the_method_lacks_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"names the hooks 'mine', expected none: set.*`hooks`"):
        check_hooks(fedavg(), [Recipe(), Recipe(hook="mine")])
    with pytest.raises(ConfigError, match="names the hooks 'other', expected 'mine'"):
        check_hooks(MINE, [Recipe(hook="other")])


def test_hooks_with_the_name_of_others_are_an_error() -> None:
    """A device would run the built-in ones."""
    moon = find_method("moon")
    assert moon.hooks is not None
    check_hooks(moon, [Recipe(hook="moon")])
    mine = replace(moon, hooks=replace(moon.hooks, step=print))
    with pytest.raises(ConfigError, match="other hooks have the name 'moon'"):
        check_hooks(mine, [Recipe(hook="moon")])


def test_hooks_that_no_recipe_names_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_hooks(MINE, [Recipe(), Recipe(hook="mine")])
        check_hooks(replace(MINE, hooks=Hooks("mine", survey=dict)), [Recipe()])
        assert not caplog.records
        check_hooks(MINE, [Recipe()])
    assert "no recipe names the hooks 'mine'" in caplog.text


def test_a_round_that_the_method_does_not_count_is_an_error() -> None:
    state = State(3, {}, configure(fedavg(), {}))

    def finish(state: State, total: Total, rng: np.random.Generator) -> State:
        return state

    run = SimpleNamespace(
        method=replace(MINE, finish=finish),
        config=SimpleNamespace(seed=0),
        publish=lambda event: None,
    )
    with pytest.raises(ConfigError, match=r"method mine: expected.*round 4, found round 3"):
        finish_round(run, state, Total())


def test_a_finish_may_return_parameters_of_a_module() -> None:
    """Such as those of a hypernetwork, which require gradients."""
    state = State(3, {"a": torch.nn.Parameter(torch.ones(2))}, configure(fedavg(), {}))
    run = SimpleNamespace(
        method=replace(MINE, finish=lambda state, total, rng: replace(state, round=4)),
        config=SimpleNamespace(seed=0, private=SimpleNamespace(noise=0.0)),
        publish=lambda event: None,
        past=None,
        defences=SimpleNamespace(release=lambda number, total: None),
    )
    after, *_ = finish_round(run, state, Total())
    assert after.tensors["a"].tolist() == [1.0, 1.0]


def test_a_finish_that_returns_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match="expected `finish` to return a State, found None"):
        check_finished("mine", BEFORE, None)


@pytest.mark.parametrize("rounds", [1, MAX_DISCARDED + 2])
def test_a_run_whose_weights_are_never_finite_fails_and_names_the_method(
    tmp_path: Path, rounds: int
) -> None:
    members = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    settings = {
        "method.name": DIVERGING,
        "method.widths": [0.25],
        "train.steps": 1,
        "fleet.min_agents": 2,
        "rounds": rounds,
    }
    with pytest.raises(ConfigError, match=rf"method {DIVERGING}: .* not finite and were discarded"):
        federate(tmp_path, members, settings)
    done = min(rounds, MAX_DISCARDED)
    assert describe_status(RUN, tmp_path / "runs")["rounds_done"] == done


def test_negative_variances_are_an_error() -> None:
    tensors = {"norm.running_var@w1": torch.tensor([1.0, -0.1])}
    state = State(4, tensors, configure(fedavg(), {}))
    with pytest.raises(ConfigError, match=r"method mine: .*negative variances in norm.running_var"):
        check_finished("mine", BEFORE, state)


def test_other_tensors_of_a_method_may_be_negative() -> None:
    tensors = {
        "momentum/norm.running_var": -torch.ones(2),
        "norm.running_mean": -torch.ones(2),
        "norm.running_var": torch.zeros(2),
    }
    check_finished("mine", BEFORE, State(4, tensors, configure(fedavg(), {})))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (torch.zeros(3, 2), r"torch.float32 \[3, 2\]"),
        (torch.zeros(2, dtype=torch.float64), r"torch.float64 \[2\]"),
        (np.zeros(2), "ndarray"),
        (None, "no tensor"),
    ],
)
def test_a_finish_that_changes_shape_or_type_is_an_error(value: Any, found: str) -> None:
    before = replace(BEFORE, tensors={"w": torch.ones(2), "momentum/w": torch.ones(2)})
    tensors = {} if value is None else {"w": value}
    with pytest.raises(
        ConfigError,
        match=rf"method mine: .*return torch.float32 \[2\] for w, found {found}: keep shape",
    ):
        check_finished("mine", before, replace(before, round=4, tensors=tensors))


def test_a_method_may_change_the_shape_of_its_own_tensors() -> None:
    before = replace(BEFORE, tensors={"memory/w": torch.ones(2)})
    check_finished("mine", before, replace(before, round=4, tensors={"memory/w": torch.ones(3)}))
