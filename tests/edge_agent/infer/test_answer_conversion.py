"""Outputs become labels with confidences, or values."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from edge_agent.infer.answer_conversion import answer, format_answer
from export.onnx_session import Session, load
from federated.errors import DataError, ExportError
from tests.export.conftest import GIVEN, make_bytes, make_text
from tests.support.handmade_releases import GRAPH


@pytest.fixture
def toy() -> Session:
    return load(GRAPH)


def test_an_answer_is_the_largest_logit_and_its_softmax(toy: Session) -> None:
    found = answer(toy, np.array([[2, 1], [0, 0], [200, 0]], np.uint8))
    assert [one["label"] for one in found] == [0, 0, 0]
    assert found[0]["confidence"] == pytest.approx(1 / (1 + math.exp(-3)))  # logits 2 and -1
    assert found[1]["confidence"] == 0.5
    assert found[2]["confidence"] == 1.0
    assert answer(toy, np.zeros((0, 2), np.uint8)) == []


def test_answers_are_plain_values(toy: Session) -> None:
    assert json.loads(json.dumps(answer(toy, np.array([[0, 0]], np.uint8)))) == [
        {"label": 0, "confidence": 0.5}
    ]


def test_values_are_answered_as_they_are() -> None:
    session = Session(make_bytes(given={**GIVEN, "objective": "value"}, output="values"), "toy")
    (found,) = answer(session, np.array([[3, 1]], np.uint8))
    assert found == {"values": [3.0, -1.0]}
    assert format_answer(found) == "3, -1"


def test_next_token_follows_the_last() -> None:
    (found,) = answer(Session(make_text("next"), "text"), np.array([[0, 2, 0]]))
    share = math.exp(2) / (math.exp(2) + 2)
    assert found == {"label": 1, "confidence": pytest.approx(share)}
    assert format_answer(found) == f"1 ({share:.1%})"


def test_each_hidden_token_of_a_text_is_answered() -> None:
    session = Session(make_text("masked"), "text")
    one, two = answer(session, np.array([[0, 3, 0], [3, 3, 1]]))
    share = math.e / (math.e + 2)
    assert one == {"labels": [2], "confidences": [pytest.approx(share)]}
    assert format_answer(two) == f"2 ({share:.1%}), 2 ({share:.1%})"
    with pytest.raises(DataError, match=r"hidden tokens \(id 3\), found one without"):
        answer(session, np.array([[0, 3, 0], [0, 1, 2]]))


def test_classes_have_names_if_known(toy: Session) -> None:
    (found,) = answer(toy, np.array([[2, 1]], np.uint8), ("cat", "dog"))
    assert (found["label"], found["name"]) == (0, "cat")
    assert format_answer(found) == "cat (95.3%)"
    assert "name" not in answer(toy, np.array([[2, 1]], np.uint8), ("cat",))[0], (
        "one name is not of two classes"
    )


def test_non_finite_output_is_refused() -> None:
    session = Session(make_bytes(dtype="FLOAT"), "broken")
    with pytest.raises(
        ExportError, match="broken: expected a finite output, found NaN or infinity"
    ):
        answer(session, np.array([[np.inf, 0]], np.float32))
