"""The update of a site, when one of its devices claims what it likes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.gateway.site_sum import SiteSum
from coordinator.round.round_state import Agent
from coordinator.round.task_state import TaskState
from federated.task import Card, Recipe, Task, Update, Work
from federated.wire import tensors
from models.menu import menu
from models.named_network import network
from models.submodel_building import statistics
from tests.support.scripted_agent import PROFILE

(SUBMODEL,) = menu(network("preresnet", (1, 8, 8), 10), (0.5,), (1,))
TASK = Task("r", 1, 1, "site", "train", SUBMODEL, "r0", "0" * 64, 100, Recipe(), 60.0)
TALLIES = {"all": {"count": [5.0], "loss": [1.0], "right": [2.0]}}
EXAMPLES = 64


def start(folder: Path, examples: Mapping[str, int]) -> SiteSum:
    """Return the sum of a site whose devices claim these numbers of examples."""
    weights = folder / "weights"
    weights.write_bytes(bytes(tensors.encode({}, {"w": np.zeros(2, np.float32)})))
    agents = {
        name: Agent(name, profile=replace(PROFILE, agent=name, data=make_card(count)))
        for name, count in examples.items()
    }
    return SiteSum(agents, weights)


def make_card(examples: int) -> Card:
    return Card("d", (1, 8, 8), "float32", 10, examples, 5, (0.0,), (1.0,))


def deliver(
    site: SiteSum, agent: str, work: Work, samples: int, value: float, notes: Mapping[str, Any]
) -> None:
    """Check and fold the update of a device, as a round does."""
    task = replace(TASK, agent=agent, work=work)
    found = {
        "train": {"w": np.full(2, value, np.float32)},
        "calibrate": {
            name: np.full(shape, value, np.float32) for name, shape in statistics(SUBMODEL).items()
        },
        "evaluate": {},
    }[work]
    update = Update("r", 1, 1, agent, work, SUBMODEL, "r0", samples, 1, found, notes)
    site.check(task, update, math.inf)
    site.fold(TaskState(task, 0, 0.0), update)


@pytest.mark.parametrize("claim", [10**9, -1, "many"])
def test_notes_of_another_task_have_no_effect(tmp_path: Path, claim: object) -> None:
    """Only statistics are weighted by batches; the notes of others are not checked for them."""
    site = start(tmp_path, {"a": EXAMPLES, "liar": EXAMPLES})
    deliver(site, "a", "train", EXAMPLES, 1.0, {"loss": 1.0})
    deliver(site, "liar", "train", EXAMPLES, 2.0, {"loss": 1.0, "batches": claim})
    found = site.make_update(TASK)
    assert (found.samples, found.notes["loss"]) == (2 * EXAMPLES, 1.0)
    np.testing.assert_array_equal(found.tensors["w"], [1.5, 1.5])


@pytest.mark.parametrize("work", ["evaluate", "calibrate"])
def test_notes_of_a_training_are_not_read_from_other_work(tmp_path: Path, work: Work) -> None:
    site = start(tmp_path, {"liar": EXAMPLES})
    wrong = {"loss": "low", "labels": [[1]], "tallies" if work == "calibrate" else "batches": 7}
    right = {"batches": 2} if work == "calibrate" else {"tallies": TALLIES}
    deliver(site, "liar", work, 5, 0.5, {**wrong, **right})
    assert site.make_update(replace(TASK, work=work)).notes == right


def test_a_device_counts_with_at_most_ten_times_the_median_of_the_examples(tmp_path: Path) -> None:
    site = start(tmp_path, {"a": 10, "b": 10, "liar": 2**40 - 1})
    for agent, samples, value in (("a", 10, 0.0), ("b", 10, 0.0), ("liar", 2**40 - 1, 6.0)):
        deliver(site, agent, "train", samples, value, {"loss": 1.0})
    found = site.make_update(TASK)
    assert found.samples == 120
    np.testing.assert_allclose(found.tensors["w"], 5.0)


def test_a_device_counts_with_at_most_as_many_batches(tmp_path: Path) -> None:
    site = start(tmp_path, {"a": 10, "b": 10, "liar": 10})
    for agent, batches in (("a", 10), ("b", 10), ("liar", 2**39)):
        deliver(site, agent, "calibrate", max(10, batches), 0.1, {"batches": batches})
    found = site.make_update(replace(TASK, work="calibrate"))
    assert (found.samples, found.notes) == (120, {"batches": 120})
