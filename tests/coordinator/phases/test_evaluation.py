"""Scores of a network with several exits, and calibration under a robust rule."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from coordinator.fleet.submodel_shipment import select_statistics
from coordinator.phases import evaluation
from coordinator.phases.collectors import Calibration
from coordinator.phases.evaluation import can_hold, replace_statistics, split_suspects
from coordinator.round.round_state import Agent, Wasted
from coordinator.run import run_preparation
from federated.method import configure
from federated.methods.common.width_depth_submodels import propose_sizes
from federated.methods.fedavg import fedavg
from federated.task import Update
from federated.training.evaluation_passes import evaluate as evaluate_locally
from federated.training.score_sums import Tallies
from models.cost import cost
from models.menu import menu
from models.named_network import network
from models.step_workload import work
from models.submodel import Submodel
from models.submodel_building import initial, statistics
from tests.support.memory_federation import Member, digits, federate
from tests.support.scripted_agent import PROFILE


@pytest.mark.slow
def test_each_exit_is_scored_centrally_and_on_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one exit per section, and the mean of their logits. The last exit counts."""
    method = replace(
        fedavg(), features=("exits",), menu=partial(propose_sizes, features=("exits",))
    )
    monkeypatch.setattr(run_preparation, "find_method", lambda name: method)
    settings = {
        "rounds": 1,
        "method.name": "fedavg",
        "model.name": "resnet-small",
        "method.widths": [0.25],
        "train.steps": 1,
        "evaluate.local": True,
    }
    done = federate(tmp_path, [Member("a0", digits(0, 1))], settings)
    found = {s.view: s for s in done.result.scores if not s.agent}
    exits = {
        f"{where}/{view}"
        for where in ("central", "devices")
        for view in ("exit0", "exit1", "exit2", "ensemble")
    }
    assert found.keys() == {"central", "devices", "labels", "before", "after", *exits}
    assert found["central"].loss == found["central/exit2"].loss != found["central/exit0"].loss
    assert found["devices"].accuracy == found["devices/exit2"].accuracy


def test_the_coordinator_scores_while_devices_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device keeps its scores back until the coordinator has scored something itself."""
    scored, waited = Event(), list[bool]()

    def score(*given: Any) -> Tallies:
        tallies = evaluate_locally(*given)
        scored.set()
        return tallies

    def keep_back(update: Update) -> Update:
        if update.work == "evaluate":
            waited.append(scored.wait(30))
        return update

    monkeypatch.setattr(evaluation, "evaluate_locally", score)
    settings = {
        "method.name": "fedavg",
        "method.widths": [0.25],
        "method.depths": [1],
        "train.steps": 1,
    }
    done = federate(tmp_path, [Member("a0", digits(0, 1), change=keep_back)], settings)
    assert waited
    assert all(waited)
    assert [s.view for s in done.result.scores if not s.agent] == ["devices", "labels", "central"]


def make_statistics(submodel: Submodel, agent: str, value: float, batches: int) -> Update:
    tensors = {
        name: np.full(shape, value, np.float32) for name, shape in statistics(submodel).items()
    }
    return Update(
        "r", 1, 1, agent, "calibrate", submodel, "r1", 2**30, 0, tensors, {"batches": batches}
    )


def test_statistics_count_with_a_limited_number_of_batches() -> None:
    """3 batches of 1 and 10 of 2**30 batches of 14: (3 x 1 + 10 x 14) / 13 is 11."""
    submodel = menu(network("preresnet", (1, 8, 8), 3), (0.25,), (1,))[0]
    calibration = Calibration(lambda name: None, False, 10)
    for answer in (
        make_statistics(submodel, "a", 1.0, 3),
        make_statistics(submodel, "liar", 14.0, 2**30),
    ):
        calibration.fold(None, answer)  # type: ignore[arg-type]
    assert all(((v - 11).abs() < 1e-5).all() for v in calibration.statistics().values())


def test_under_a_robust_rule_a_large_batch_count_does_not_dominate() -> None:
    """Two honest agents send the means 1 and 2; a liar sends 9e9 from 2**30 batches. The median is
    2; weighted by batches, the liar decides alone.
    """
    submodel = menu(network("preresnet", (1, 8, 8), 3), (0.25,), (1,))[0]

    method = fedavg()
    state = method.start(initial(submodel.network, 0), (submodel,), configure(method, {}))
    for robust, low, high in ((True, 2.0, 2.0), (False, 8.9e9, 9.1e9)):
        calibration = Calibration(lambda name: None, robust)
        for answer in (
            make_statistics(submodel, "a", 1.0, 3),
            make_statistics(submodel, "b", 2.0, 3),
            make_statistics(submodel, "liar", 9e9, 2**30),
        ):
            calibration.fold(None, answer)  # type: ignore[arg-type]
        found = replace_statistics(state, calibration.statistics())
        values = select_statistics(found, submodel)
        assert values.keys() == statistics(submodel).keys()
        assert all(
            low <= float(value.min()) <= float(value.max()) <= high for value in values.values()
        )


def test_the_memory_of_one_example_is_counted_only_where_a_batch_does_not_fit() -> None:
    submodel = menu(network("preresnet", (1, 8, 8), 3), (0.37,), (1,))[0]
    batch = cost(submodel, 64)
    enough, counted = 2 * batch.bytes + batch.memory, work.cache_info().misses
    assert can_hold(make_agent(2 * enough), submodel, 64, 0.5)
    assert work.cache_info().misses == counted
    example = cost(submodel, 1)
    least = 2 * example.bytes + example.memory
    assert least < enough
    assert can_hold(make_agent(2 * least), submodel, 64, 0.5)
    assert not can_hold(make_agent(2 * least - 2), submodel, 64, 0.5)
    assert not can_hold(Agent("unknown"), submodel, 64, 0.5)


def make_agent(memory: int) -> Agent:
    return Agent("a", profile=replace(PROFILE, memory=memory))


def test_suspects_are_asked_besides_others_after_their_rest() -> None:
    well, suspect = Agent("well"), Agent("suspect", wasted={"evaluate": Wasted(1, 1)})
    assert split_suspects([suspect, well], "evaluate", 2) == ([well], [])
    assert split_suspects([suspect, well], "evaluate", 3) == ([well], [suspect])
    assert split_suspects([suspect, well], "calibrate", 3) == ([well], [suspect])
    assert split_suspects([suspect], "evaluate", 2) == ([suspect], ())
    assert split_suspects([suspect], "evaluate", 3) == ([suspect], ())
