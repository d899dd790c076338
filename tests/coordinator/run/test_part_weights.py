"""Weights of a user's method: invalid ones end the run, and a round without any is a warning."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from federated.engine.update_contributions import Part
from federated.errors import ConfigError
from federated.method import Method, State
from federated.methods.fedavg import fedavg
from federated.task import Update
from models.slicing import Plan
from tests.support.memory_federation import Member, digits, federate

pytestmark = pytest.mark.usefixtures("forgotten_extensions")

SETTINGS = {"train.steps": 1, "method.widths": [1.0], "method.depths": [4], "rounds": 1}
UNCOUNTED = "nothing is learned in round 1: the `parts` of method"


def weigh(first: float, others: float) -> Method:
    """Return FedAvg with given weights of the agent a0 and of the others."""
    base = fedavg()

    def parts(state: State, plan: Plan, update: Update) -> Iterator[Part]:
        weight = first if update.agent == "a0" else others
        return (replace(part, weight=weight) for part in base.parts(state, plan, update))

    return replace(base, parts=parts)


negative = partial(weigh, -1.0, 2.0)
undefined = partial(weigh, math.nan, 1.0)
nothing = partial(weigh, 0.0, 0.0)
half = partial(weigh, 0.0, 1.0)


def run_two(folder: Path, method: str, **more: object) -> None:
    settings = {**SETTINGS, "method.name": f"{__name__}:{method}", **more}
    federate(folder, [Member("a0", digits(0, 2)), Member("a1", digits(1, 2))], settings)


@pytest.mark.parametrize(("method", "found"), [("negative", "-1.0"), ("undefined", "nan")])
@pytest.mark.parametrize("rule", ["none", "median"])
def test_a_weight_that_is_negative_or_not_finite_is_an_error(
    tmp_path: Path, method: str, found: str, rule: str
) -> None:
    """A robust rule gives all updates the same weight, and must not hide it."""
    expected = rf"method .*:{method}: .*`parts` of the update of a0: .*at least 0, found {found}"
    with pytest.raises(ConfigError, match=expected):
        run_two(tmp_path, method, **{"robust.rule": rule})


def test_a_round_in_which_every_weight_is_0_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run_two(tmp_path, "nothing")
    assert UNCOUNTED in caplog.text


def test_a_single_update_may_have_weight_0(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run_two(tmp_path, "half")
    assert UNCOUNTED not in caplog.text
