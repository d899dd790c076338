"""Summaries of scores, compared with values computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace

from coordinator.observe.fleet_scores import is_target_reached, score_devices, summarise
from coordinator.observe.round_records import Score
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
    found = summarise(scores, (SMALL, LARGE), assigned)
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
    found = summarise(scores, (plain, branched), {"d0": plain, "d1": branched})
    assert found == {"after": 0.7, "strong": 0.9, "weak": 0.5}


def test_worst_and_mean_are_over_submodels_and_global_is_the_largest():
    scores = [
        Score(LARGE.name, "central", 0.6, 1.0, 10),
        Score(SMALL.name, "central", 0.8, 2.0, 10),
        Score(SMALL.name, "devices", 0.1, 9.0, 10),
    ]
    found = summarise(scores, (SMALL, LARGE), {})
    assert (found["global"], found["worst"], found["mean"], found["loss"]) == (0.6, 0.6, 0.7, 1.0)


def report(agent: str, count: int, right: int) -> tuple[Submodel, str, dict]:
    return LARGE, agent, {"all": {"count": [count], "loss": [2.0 * count], "right": [right]}}


def test_no_device_counts_with_more_than_a_multiple_of_the_median_in_a_score() -> None:
    """100, 100 and 2^47 examples, which count as 1000: (50 + 50 + 1000) / 1200 are right."""
    found = [report("a", 100, 50), report("b", 100, 50), report("c", 2**47, 2**47)]
    overall = {s.agent: s for s in score_devices(found, 10.0)}
    assert (overall[""].examples, overall[""].loss) == (1200, 2.0)
    assert round(overall[""].accuracy, 9) == round(1100 / 1200, 9)
    assert (overall["c"].examples, overall["c"].accuracy) == (2**47, 1.0)
    assert score_devices(found)[0].examples == 200 + 2**47


def test_a_single_device_does_not_reach_the_target_for_all() -> None:
    """With the others at 0.5, one that claims to be always right reaches 0.9 in the mean."""
    found = [report("a", 100, 50), report("b", 100, 50), report("c", 2**47, 2**47)]
    for ratio in (0.0, 10.0):
        scores = score_devices(found, ratio)
        assert scores[0].accuracy > 0.9
        assert not is_target_reached(scores, (SMALL, LARGE), 0.9)
        assert is_target_reached(scores, (SMALL, LARGE), 0.5)


def test_the_target_counts_for_one_device_and_for_the_coordinators_own_data() -> None:
    one = score_devices([report("a", 100, 90)])
    assert is_target_reached(one, (LARGE,), 0.9)
    assert not is_target_reached(one, (LARGE,), 0.91)
    assert not is_target_reached(one, (LARGE,), 0.0)
    own = Score(LARGE.name, "central", 0.95, 0.0, 10)
    assert is_target_reached([own, *one], (LARGE,), 0.95)


def test_a_loss_of_nan_is_null_in_json():
    assert json.loads(encode_json({"loss": float("nan"), "rounds": [1]})) == {
        "loss": None,
        "rounds": [1],
    }
