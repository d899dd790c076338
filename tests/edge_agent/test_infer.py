"""A device without torch reads inputs, refuses what it would misread, and answers with label and confidence."""

from __future__ import annotations

import io
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.infer import answer, command, read, shaped, told
from export.verify import Session, load, sha256
from federated.errors import DataError, ExportError, UsageError
from tests.export.conftest import GIVEN, make_bytes, make_text

GRAPHS = Path(__file__).parents[1] / "export"  # logits: the first number of an example, and minus the second
PICTURE = np.array([[4, 1], [0, 0]], np.uint8)


@pytest.fixture
def toy() -> Session:
    return load(GRAPHS / "toy.onnx")


@pytest.fixture
def picture() -> Session:
    return load(GRAPHS / "picture.onnx")


def options(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"broker": None, "model": GRAPHS / "toy.onnx", "run": None, "name": "pi", "submodel": None, "sha256": None}
    return fields | {"store": Path("unused"), "wait": 1.0, "inputs": (), "form": "text"} | changes


def test_an_answer_is_the_largest_logit_and_its_softmax(toy: Session) -> None:
    found = answer(toy, np.array([[2, 1], [0, 0], [200, 0]], np.uint8))
    assert [one["label"] for one in found] == [0, 0, 0]
    assert found[0]["confidence"] == pytest.approx(1 / (1 + math.exp(-3)))  # logits 2 and -1
    assert found[1]["confidence"] == 0.5
    assert found[2]["confidence"] == 1.0
    assert answer(toy, np.zeros((0, 2), np.uint8)) == []


def test_answers_are_plain_values(toy: Session) -> None:
    assert json.loads(json.dumps(answer(toy, np.array([[0, 0]], np.uint8)))) == [{"label": 0, "confidence": 0.5}]


def test_values_are_answered_as_they_are() -> None:
    session = Session(make_bytes(given={**GIVEN, "objective": "value"}, output="values"), "toy")
    (found,) = answer(session, np.array([[3, 1]], np.uint8))
    assert found == {"values": [3.0, -1.0]}
    assert told(found) == "3, -1"


def test_the_next_token_is_that_after_the_last() -> None:
    (found,) = answer(Session(make_text("next"), "text"), np.array([[0, 2, 0]]))
    share = math.exp(2) / (math.exp(2) + 2)
    assert found == {"label": 1, "confidence": pytest.approx(share)}
    assert told(found) == f"1 ({share:.1%})"


def test_each_hidden_token_of_a_text_is_answered() -> None:
    session = Session(make_text("masked"), "text")
    one, two = answer(session, np.array([[0, 3, 0], [3, 3, 1]]))
    share = math.e / (math.e + 2)
    assert one == {"labels": [2], "confidences": [pytest.approx(share)]}
    assert told(two) == f"2 ({share:.1%}), 2 ({share:.1%})"
    with pytest.raises(DataError, match="expected texts with hidden tokens, spelled 3, found one without"):
        answer(session, np.array([[0, 3, 0], [0, 1, 2]]))


def test_tokens_are_whole_numbers() -> None:
    session = Session(make_text("next"), "text")
    assert shaped(np.array([0.0, 1.0, 2.0]), session, "mine").tolist() == [[0, 1, 2]]
    with pytest.raises(DataError, match="mine: expected ids of tokens"):
        shaped(np.array([0.5, 1, 2]), session, "mine")


def test_arrays_json_and_standard_input_give_the_same_examples(tmp_path: Path, toy: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.array([[1, 2], [3, 4]])
    np.save(tmp_path / "a.npy", x)
    np.savez(tmp_path / "b.npz", x=x, y=[0, 1])
    np.savez(tmp_path / "c.npz", anything=x.astype(np.float64))
    (tmp_path / "d.json").write_text(json.dumps(x.tolist()))
    monkeypatch.setattr(sys, "stdin", io.StringIO("[[1, 2], [3.0, 4]]"))
    for path in (*sorted(tmp_path.iterdir()), None):
        found = read(path, toy)
        assert found.dtype == np.uint8
        assert found.tolist() == x.tolist()


def test_one_example_may_come_without_its_first_axis(toy: Session, picture: Session) -> None:
    assert shaped(np.array([1, 2]), toy, "x").tolist() == [[1, 2]]
    for value in (PICTURE, PICTURE[None], PICTURE[None, None]):
        assert shaped(value, picture, "x").tolist() == PICTURE[None, None].tolist()
    assert shaped(np.stack([PICTURE] * 3), picture, "x").shape == (3, 1, 2, 2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([[1, 2, 3]]), r"expected raw examples of shape \[n, 2\], found \[1, 3\]"),
        (np.array(3), r"found \[\]"),
        (np.array([[0.5, 1.0]]), "expected whole numbers from 0 to 255 .*found 0.5 to 1"),
        (np.array([[0, 256]]), "found 0 to 256"),
        (np.array([[-1, 2]]), "found -1 to 2"),
        (np.array([[1.0, np.nan]]), "found NaN or infinity"),
        (np.array([["1", "2"]]), "expected numbers, found <U1"),
    ],
)
def test_what_would_be_misread_is_refused(toy: Session, value: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=f"mine: .*{message}"):
        shaped(value, toy, "mine")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.npy", b"\x93NUMPY\x01"),
        ("b.npz", b"PK\x03\x04 no zip"),
        ("c.json", b"{"),
        ("d.json", b"[[1, 2], [3]]"),
        ("e.json", b"\xff"),
        ("f.csv", b"1,2"),
        ("g.json", b"[" * 100_000),
        ("h.npy", b""),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, toy: Session, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        read(tmp_path / name, toy)


def test_missing_files_ambiguous_archives_and_pickles_are_refused(tmp_path: Path, toy: Session) -> None:
    with pytest.raises(DataError, match=r"none\.npy"):
        read(tmp_path / "none.npy", toy)
    np.savez(tmp_path / "two.npz", a=[1], b=[2])
    with pytest.raises(DataError, match="expected an array 'x', or one array only, found a, b"):
        read(tmp_path / "two.npz", toy)
    np.save(tmp_path / "pickle.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(DataError, match="pickle"):
        read(tmp_path / "pickle.npy", toy)


def test_the_command_answers_for_each_example_of_each_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", [[2, 1], [0, 0]])
    (tmp_path / "b.json").write_text("[9, 0]")
    inputs = (tmp_path / "a.npy", tmp_path / "b.json")
    assert command(**options(inputs=inputs)).splitlines() == [
        f"{inputs[0]}: 0 (95.3%)",
        f"{inputs[0]}: 0 (50.0%)",
        f"{inputs[1]}: 0 (100.0%)",
    ]
    told = json.loads(command(**options(inputs=inputs, form="json")))
    assert (told["run"], told["round"], told["submodel"]) == ("spring", 7, "w1-d1")
    assert [found["input"] for found in told["answers"]] == [str(inputs[0]), str(inputs[0]), str(inputs[1])]
    assert told["answers"][1] == {"input": str(inputs[0]), "label": 0, "confidence": 0.5}


def test_the_command_checks_the_digest_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = sha256(GRAPHS / "toy.onnx")
    monkeypatch.setattr(sys, "stdin", io.StringIO("[0, 0]"))
    assert command(**options(sha256=digest)) == "-: 0 (50.0%)"
    copy = shutil.copy(GRAPHS / "picture.onnx", tmp_path / "other.onnx")
    with pytest.raises(ExportError, match=f"expected sha256 {digest}"):
        command(**options(sha256=digest, model=copy))


@pytest.mark.parametrize("changes", [{"model": None}, {"broker": "127.0.0.1"}, {"model": None, "broker": "127.0.0.1", "sha256": "0" * 64}])
def test_flags_that_contradict_each_other_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--model"):
        command(**options(**changes))


def test_a_device_without_torch_answers() -> None:
    code = "import sys, pathlib; sys.modules['torch'] = sys.modules['onnx'] = None\nfrom edge_agent import infer\n" + (
        f"print(infer.command(broker=None, model=pathlib.Path({str(GRAPHS / 'picture.onnx')!r}), run=None, name='pi', submodel=None, sha256=None,"
        " store=pathlib.Path('unused'), wait=1.0, inputs=(), form='text'))"
    )
    done = subprocess.run([sys.executable, "-c", code], input="[[4, 1], [0, 0]]", check=True, capture_output=True, text=True)
    assert done.stdout == f"-: 0 ({1 / (1 + math.exp(-5)):.1%})\n"
