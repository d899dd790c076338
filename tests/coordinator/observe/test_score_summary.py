"""Summaries of scores, compared with values computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace

from coordinator.observe.round_records import Score
from coordinator.observe.score_summary import summarize
from coordinator.simulate.results import encode_json
from models.submodel import Network, Submodel

NETWORK = Network("preresnet", "small", (1, 8, 8), 10)
SMALL, LARGE = (Submodel(NETWORK, width, ((1,),)) for width in (0.5, 1.0))


def test_strong_and_weak_use_only_the_present_submodel_of_each_device():
    """The old score of d0 with the large submodel counts neither as strong nor as weak."""
    assigned = {"d0": SMALL, "d1": LARGE, "d2": SMALL}
    scores = [
        Score(LARGE.name, "after", 0.1, 0.0, 10, "d0"),
        Score(SMALL.name, "after", 0.5, 0.0, 10, "d0"),
        Score(LARGE.name, "after", 0.9, 0.0, 10, "d1"),
        Score(SMALL.name, "after", 0.7, 0.0, 90, "d2"),
    ]
    found = summarize(scores, (SMALL, LARGE), assigned)
    assert (round(found["strong"], 9), round(found["weak"], 9), round(found["after"], 9)) == (
        0.9,
        0.6,
        0.7,
    )


def test_devices_that_train_one_network_with_more_branches_are_strong():
    """In DynamicFL a score names the merged network without branches, and counts for each device
    that trains it.
    """
    plain, branched = LARGE, replace(LARGE, branches=4)
    scores = [
        Score(plain.name, "after", 0.5, 0.0, 10, "d0"),
        Score(plain.name, "after", 0.9, 0.0, 10, "d1"),
    ]
    found = summarize(scores, (plain, branched), {"d0": plain, "d1": branched})
    assert found == {"after": 0.7, "strong": 0.9, "weak": 0.5}


def test_worst_and_mean_are_over_submodels_and_global_is_the_largest():
    scores = [
        Score(LARGE.name, "central", 0.6, 1.0, 10),
        Score(SMALL.name, "central", 0.8, 2.0, 10),
        Score(SMALL.name, "devices", 0.1, 9.0, 10),
    ]
    found = summarize(scores, (SMALL, LARGE), {})
    assert (found["global"], found["worst"], found["mean"], found["loss"]) == (0.6, 0.6, 0.7, 1.0)


def test_a_loss_of_nan_is_null_in_json():
    assert json.loads(encode_json({"loss": float("nan"), "rounds": [1]})) == {
        "loss": None,
        "rounds": [1],
    }
