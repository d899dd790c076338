"""Scores from sums: by hand, and of several devices together."""

from __future__ import annotations

import math

import pytest

from federated.training.score_sums import add, fields, metrics
from models.submodel import Network

CLASSES = Network("n", "", (1,), 3)
VALUES = Network("n", "", (1,), 1, objective="value", shift=(10.0,), scale=(2.0,))


def test_tallies_add_by_entry():
    assert add([{"count": [1], "hits": [1, 0]}, {"count": [2], "hits": [0, 5]}]) == {
        "count": [3],
        "hits": [1, 5],
    }
    assert add([]) == {}


def test_macro_f1_and_the_majority_by_hand():
    """F1 is 2x3/(4+4), 2x1/(2+1) and, for a class that was guessed but never true, 0. Always
    guessing class 0: 4 of 5, F1 8/9 and 0.
    """
    found = metrics(
        {
            "count": [5],
            "loss": [10],
            "right": [4],
            "hits": [3, 1, 0],
            "guessed": [4, 1, 1],
            "true": [4, 2, 0],
        },
        CLASSES,
    )
    assert found["accuracy"] == 0.8
    assert found["loss"] == 2
    assert found["macro_f1"] == pytest.approx((6 / 8 + 2 / 3 + 0) / 3)
    assert found["majority"] == 0.8
    assert found["majority_f1"] == pytest.approx(8 / 9 / 2)


def test_without_sums_per_class_there_is_no_f1():
    assert metrics({"count": [4], "loss": [2], "right": [1]}, CLASSES) == {
        "accuracy": 0.25,
        "loss": 0.5,
    }


def test_perplexity_is_that_of_a_token():
    tokens = Network("n", "", (8,), 5, objective="next")
    assert metrics({"count": [10], "loss": [10 * math.log(5)], "right": [2]}, tokens)[
        "perplexity"
    ] == pytest.approx(5)


def test_the_explained_share_and_the_error_in_raw_units():
    """Truth -1, 1 (spread 2) and squared errors of 0.5 in all: R2 is 0.75; the root of 0.25 is 0.5
    deviations of 2.
    """
    found = metrics(
        {"count": [2], "loss": [0.5], "errors": [0.5], "sum": [0], "squares": [2]}, VALUES
    )
    assert found["accuracy"] == 0.75
    assert found["rmse"] == 1.0


def test_a_value_that_never_varies_is_not_explained():
    assert (
        metrics({"count": [2], "loss": [0], "errors": [0], "sum": [2], "squares": [2]}, VALUES)[
            "accuracy"
        ]
        == 0
    )


def test_sums_per_class_are_for_few_classes():
    assert fields(CLASSES, per_class=True) == {
        "count": 1,
        "loss": 1,
        "right": 1,
        "hits": 3,
        "guessed": 3,
        "true": 3,
    }
    assert "hits" not in fields(Network("n", "", (1,), 1001), per_class=True)
    assert "hits" not in fields(CLASSES, per_class=False)
