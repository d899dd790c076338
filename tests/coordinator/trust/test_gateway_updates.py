"""Which methods and settings allow gateways, whose update stands for several devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.settings.config import Config, load
from coordinator.trust.gateway_updates import explain_gateways, explain_inexact_mean
from federated.engine.update_contributions import Part
from federated.errors import ConfigError
from federated.method import Method, State, configure
from federated.methods.catalogue import METHODS, find_method
from models.named_network import network
from models.submodel_building import initial

NETWORK = network("mlp-small", (1, 4, 4), 3)
EXITS = network("preresnet", (1, 4, 4), 3)  # for methods that need exits


def explain(method: Method, config: Config | None = None, **settings: object) -> str:
    """Return why gateways cannot take part, for the first submodels of a small network."""
    given = configure(method, settings, rounds=4)
    try:
        menu = method.menu(NETWORK, given)
    except ConfigError:
        menu = method.menu(EXITS, given)
    state = method.start(initial(menu[-1].network, 0, method.features), menu, given)
    return explain_gateways(config or Config(), method, state, menu)


def test_a_mean_by_examples_allows_gateways() -> None:
    assert explain(find_method("fedavg")) == ""
    assert explain(find_method("fedavg"), widths=(0.5, 1.0)) == ""
    assert explain(find_method("fedprox")) == ""
    assert explain(find_method("fedadam")) == ""


def test_a_mean_that_counts_all_devices_alike_does_not() -> None:
    why = explain(find_method("fedavg"), weighting="uniform")
    assert "method.weighting = 'samples'" in why
    assert "method.weighting = 'samples'" in explain(find_method("heterofl"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fednova", "does not count the mean"),
        ("scaffold", "control variate"),
        ("moon", "keep values"),
        ("depthfl", "control variate"),
    ],
)
def test_a_method_whose_updates_do_not_add_up_says_why(name: str, words: str) -> None:
    assert words in explain(find_method(name))


def test_the_optimisers_state_on_devices_is_a_reason() -> None:
    assert "optimiser" in explain(find_method("fedavg"), keep_optimiser=True)


def test_robust_and_private_runs_need_the_updates_of_devices() -> None:
    robust = load(None, {}, [("robust.rule", "median")])
    assert "robust.rule = 'median'" in explain(find_method("fedavg"), robust)
    private = load(None, {}, [("private.noise", 1.0), ("private.clip", 1.0)])
    assert "private.noise" in explain(find_method("fedavg"), private)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gets_an_answer(name: str) -> None:
    """A reason is a clause without a full stop, since an error continues after it."""
    why = explain(find_method(name))
    assert not why.endswith(".")


def test_a_method_of_another_package_that_squares_the_examples_does_not_allow_gateways() -> None:
    def parts(state: State, plan: object, update: object) -> list[Part]:
        found = fedavg.parts(state, plan, update)  # type: ignore[arg-type]
        return [replace(part, weight=part.weight**2) for part in found]

    fedavg = find_method("fedavg")
    squared = replace(fedavg, name="squared", parts=parts)
    assert "method squared does not count the mean" in explain(squared)


def test_a_method_that_fails_is_reported() -> None:
    def fail(state: State, plan: object, update: object) -> list[Part]:
        raise KeyError("survey")

    method = replace(find_method("fedavg"), parts=fail)
    given = configure(method, {}, rounds=4)
    menu = method.menu(NETWORK, given)
    state = method.start(initial(NETWORK, 0), menu, given)
    assert "'survey'" in explain_inexact_mean(method, state, menu[0])
