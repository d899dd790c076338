"""Data sets are checked when they are made, and their data cards are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from federated.data.dataset import Dataset
from federated.errors import DataError

# [2, 2, 1, 2]: channel 0 holds 0 2 4 6, channel 1 only 5
X = np.array([[[[0, 2]], [[5, 5]]], [[[4, 6]], [[5, 5]]]], np.uint8)
Y = np.array([0, 2], np.int64)


def make(**changes: Any) -> Dataset:
    fields: dict[str, Any] = {
        "name": "toy",
        "x": X,
        "y": Y,
        "x_held": X[:0],
        "y_held": Y[:0],
        "outputs": 3,
    } | changes
    return Dataset(**fields)


def test_card_holds_sizes_and_the_moments_of_each_channel() -> None:
    card = make(x_held=X[:1], y_held=Y[:1]).card()
    assert (card.name, card.inputs, card.dtype, card.outputs, card.examples, card.held_out) == (
        "toy",
        (2, 1, 2),
        "uint8",
        3,
        2,
        1,
    )
    assert card.mean == (3.0, 5.0)
    # variance (9 + 1 + 1 + 9) / 4; a channel without spread divides by 1
    assert card.std == (pytest.approx(5**0.5), 1.0)


def test_moments_of_a_large_mean_keep_their_digits() -> None:
    x = np.array([[1000.5], [1001.5]] * 5000, np.float32)  # more than one block
    card = make(x=x, y=np.zeros(10000, np.int64), x_held=x[:0]).card()
    assert card.mean == (1001.0,)
    assert card.std == (0.5,)


def test_small_units_are_no_lack_of_spread() -> None:
    x = np.array([[0.0, 3e-9, 1e9], [4e-9, 3e-9, 1e9]], np.float32)
    assert make(x=x, x_held=x[:0]).card().std == (pytest.approx(2e-9), 1.0, 1.0)


def test_labels_are_those_of_the_training_part() -> None:
    assert make(x_held=X[:1], y_held=np.array([1])).labels == (0, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": 1}, "toy: expected at least 2 classes, found 1"),
        ({"x": X[:0], "y": Y[:0]}, "toy: expected at least 1 training example, found none"),
        ({"x": X[:1]}, "toy: expected as many labels in y as examples in x, found 2 and 1"),
        ({"y": np.array([0, -3])}, "toy: expected labels of at least 0 in y, found -3 at 1"),
        ({"y": np.array([0, 3])}, r"toy: expected labels 0 to 2 in y, found 3 at 1; 1"),
        ({"y": np.array([-1, 0])}, "found -1 at 0"),
        ({"y": np.array([0.0, 1.0])}, "whole numbers"),
        ({"y": np.array([[0], [1]])}, r"found int64 \[2, 1\]"),
        ({"x": X.astype(np.float64)}, "expected x of uint8 or float32, found float64"),
        ({"x": np.zeros((2,), np.uint8)}, r"found \[2\]"),
        ({"x": np.zeros((2, 0), np.uint8)}, r"found \[2, 0\]"),
        (
            {"x_held": X[:1, :1], "y_held": Y[:1]},
            r"x_held like those in x, uint8 \[2, 1, 2\], found uint8 \[1, 1, 2\]",
        ),
        ({"x_held": X[:1]}, "as many labels in y_held as examples in x_held, found 0 and 1"),
        (
            {"x": np.array([[0.0], [np.nan]], np.float32), "x_held": np.zeros((0, 1), np.float32)},
            "NaN or infinity in example 1",
        ),
    ],
)
def test_unusable_data_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(**changes)


def test_values_have_moments_of_their_own_and_no_labels() -> None:
    y = np.array([[1.0, 10.0], [3.0, 10.0]], np.float32)
    data = make(y=y, y_held=y[:0], outputs=2, target="value")
    card = data.card()
    assert (data.labels, card.target, card.outputs) == ((), "value", 2)
    # a value without spread divides by 1
    assert (card.shift, card.scale) == ((2.0, 10.0), (1.0, 1.0))
    assert (card.mean, len(card.std)) == ((3.0, 5.0), 2)


def test_a_vector_of_values_becomes_a_column() -> None:
    y = np.array([0.5, 2.0], np.float32)
    data = make(y=y, x_held=X[:1], y_held=y[:1], outputs=1, target="value")
    assert (data.y.tolist(), data.y_held.tolist()) == ([[0.5], [2.0]], [[0.5]])


def test_tokens_have_no_moments_and_are_labels() -> None:
    x, y = np.array([[1, 4], [4, 1]]), np.array([[4, 1], [1, 6]])
    data = make(x=x, y=y, x_held=x[:1], y_held=y[:1], outputs=9, target="token")
    card = data.card()
    assert data.labels == (1, 4, 6)
    assert (
        card.inputs,
        card.dtype,
        card.outputs,
        card.mean,
        card.std,
        card.target,
        card.shift,
    ) == ((2,), "int64", 9, (0.0,), (1.0,), "token", ())


VALUE = {
    "y": np.zeros((2, 1), np.float32),
    "y_held": np.zeros((0, 1), np.float32),
    "outputs": 1,
    "target": "value",
}
WORDS = np.array([[0, 1], [1, 2]])
TOKEN = {
    "x": WORDS,
    "y": WORDS,
    "x_held": WORDS[:0],
    "y_held": WORDS[:0],
    "outputs": 3,
    "target": "token",
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "text"}, "expected a target among class, value, token, found 'text'"),
        (VALUE | {"outputs": 0}, "expected at least 1 values, found 0"),
        (VALUE | {"outputs": 2}, r"expected y as float32 \[n, 2\], found float32 \[2, 1\]"),
        (VALUE | {"y": Y}, r"expected y as float32 \[n, 1\], found int64 \[2, 1\]"),
        (
            VALUE | {"y": np.array([0.0, np.inf], np.float32)},
            "finite numbers in y, found NaN or infinity in example 1",
        ),
        (TOKEN | {"outputs": 1}, "expected at least 2 tokens, found 1"),
        (TOKEN | {"outputs": 2}, r"expected tokens 0 to 1 in x, found 2 at 1, 1; 1"),
        (TOKEN | {"y": WORDS[:, :1]}, r"the token after each in x .*found int64 \[2, 1\]"),
        (TOKEN | {"x": WORDS.astype(np.float32)}, "expected x of int64, found float32"),
        (
            {"users": np.array([1])},
            r"expected users of int64 \[2\], one per example in x, found int64 \[1\]",
        ),
        (
            {"sessions": np.array([1.0, 2.0])},
            r"expected sessions of int64 \[2\], one per example in x, found float64 \[2\]",
        ),
    ],
)
def test_unusable_values_tokens_and_people_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(**changes)
