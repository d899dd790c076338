"""MultiNLI becomes token ids with a class, and such texts are checked as other data are."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated.data.custom_arrays import read_npz
from federated.data.dataset import Dataset, explain_misfit
from federated.data.loading import load_central, load_device
from federated.data.partitions import Shard
from federated.data.published_sequences import mnli
from federated.errors import DataError
from models.submodel import Network
from tests.support.text_networks import WORDS, write_pairs

tokenizes = pytest.mark.skipif(not find_spec("tokenizers"), reason="needs the extra networks")

X = np.array([[2, 4, 3, 0], [2, 1, 4, 3]])
Y = np.array([0, 1])


def make(**changes: Any) -> Dataset:
    fields = {"x": X, "y": Y, "x_held": X[:0], "y_held": Y[:0], "outputs": 2, "vocabulary": 5}
    return Dataset("texts", **{**fields, **changes})


@tokenizes
def test_pairs_become_tokens_and_those_without_a_label_are_left_out(tmp_path: Path) -> None:
    write_pairs(tmp_path, copies=2)
    data = mnli(tmp_path)
    assert (data.x.shape, data.x_held.shape, data.vocabulary) == ((6, 128), (3, 128), len(WORDS))
    assert data.classes == ("entailment", "neutral", "contradiction")
    assert data.y.tolist() == [0, 1, 2] * 2
    words = [WORDS[token] for token in data.x[2]]
    assert words[:9] == ["[CLS]", "a", "dog", "runs", "[SEP]", "no", "dog", "runs", "[SEP]"]
    assert set(words[9:]) == {"[PAD]"}


@tokenizes
def test_a_device_gets_its_part(tmp_path: Path) -> None:
    write_pairs(tmp_path, copies=8)
    data = load_device("mnli", tmp_path, name="pi", shard=Shard(0, 2, "iid", 0))
    assert (len(data.x) + len(data.x_held), data.vocabulary) == (12, len(WORDS))
    card = load_central("mnli", tmp_path).card()
    assert (card.inputs, card.dtype, card.mean, card.vocabulary) == (
        (128,),
        "int64",
        (0.0,),
        len(WORDS),
    )


@tokenizes
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"gold_label": "entailment"}', "line 1: .*sentence1"),
        ("not JSON", "line 1: "),
        (
            json.dumps({"gold_label": "maybe", "sentence1": "a", "sentence2": "b"}),
            "line 1: the unknown label 'maybe'",
        ),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    write_pairs(tmp_path)
    (tmp_path / "mnli" / "multinli_1.0_train.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        mnli(tmp_path)


@tokenizes
@pytest.mark.parametrize("name", ["tokenizer.json", "multinli_1.0_dev_matched.jsonl"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    write_pairs(tmp_path)
    (tmp_path / "mnli" / name).unlink()
    with pytest.raises(DataError, match=name):
        mnli(tmp_path)


@tokenizes
def test_a_damaged_tokenizer_and_one_without_padding_are_errors(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    path = tmp_path / "mnli" / "tokenizer.json"
    path.write_text(path.read_text().replace("[PAD]", "[END]"))
    with pytest.raises(DataError, match=r"expected a token \[PAD\] or <pad>"):
        mnli(tmp_path)
    path.write_text("{")
    with pytest.raises(DataError, match="cannot read"):
        mnli(tmp_path)


@tokenizes
def test_a_tokenizer_that_fails_at_a_pair_is_an_error(tmp_path: Path) -> None:
    """It lacks the token of unknown words, or adds more tokens than a text may have."""
    write_pairs(tmp_path)
    path = tmp_path / "mnli" / "tokenizer.json"
    given = json.loads(path.read_text())
    lacking = ("[UNK]", "dog")
    words = {w: token for w, token in given["model"]["vocab"].items() if w not in lacking}
    pair = given["post_processor"]["pair"]
    for changes in (
        {"model": {**given["model"], "vocab": words}},
        {"post_processor": {**given["post_processor"], "pair": pair * 60}},
    ):
        path.write_text(json.dumps({**given, **changes}))
        with pytest.raises(DataError, match="cannot tokenize pairs"):
            mnli(tmp_path)


@tokenizes
def test_tokenizers_are_told_apart_by_what_they_do(tmp_path: Path) -> None:
    """Neither the layout of the file nor the lengths in it count, but each token does."""
    write_pairs(tmp_path)
    path, one = tmp_path / "mnli" / "tokenizer.json", mnli(tmp_path)
    given = json.loads(path.read_text())
    path.write_text(json.dumps({**dict(reversed(given.items())), "truncation": None}, indent=1))
    assert mnli(tmp_path).tokenizer == one.tokenizer == one.card().tokenizer
    words = given["model"]["vocab"]
    swapped = {**words, "cat": words["dog"], "dog": words["cat"]}
    path.write_text(json.dumps({**given, "model": {**given["model"], "vocab": swapped}}))
    other = mnli(tmp_path)
    assert other.vocabulary == one.vocabulary
    network = Network("mine:net", "", one.inputs, 3, vocabulary=10, tokenizer=one.tokenizer)
    assert not explain_misfit(one, network)
    assert all(name in explain_misfit(other, network) for name in (one.tokenizer, other.tokenizer))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": "t" * 129}, "a tokenizer of at most 128 characters"),
        ({"vocabulary": 4}, "expected tokens 0 to 3 in x, found 4 at 0, 1; 2 tokens are"),
        ({"vocabulary": 1}, "a vocabulary of at least 2 tokens"),
        ({"vocabulary": 0}, "expected x of uint8 or float32, found int64"),
        ({"x": X.astype(np.float32)}, "expected x of int64, found float32"),
        ({"x": X[:, None]}, r"texts as int64 \[n, T\], found \[2, 1, 4\]"),
        ({"y": X, "y_held": X[:0], "outputs": 5, "target": "token"}, "only for texts with a class"),
    ],
)
def test_unusable_texts_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(**changes)


def test_texts_may_have_values() -> None:
    values = np.array([[0.5], [1.5]], np.float32)
    card = make(y=values, y_held=values[:0], outputs=1, target="value").card()
    assert (card.target, card.vocabulary, card.mean, card.shift) == ("value", 5, (0.0,), (1.0,))


def test_arrays_with_a_vocabulary_are_texts(tmp_path: Path) -> None:
    np.savez(tmp_path / "texts.npz", x=X.astype(np.int32), y=Y, vocabulary=5, tokenizer="mine")
    data = read_npz(tmp_path / "texts.npz")
    assert data.tokenizer == "mine"
    assert (data.x.dtype, data.target, data.vocabulary, data.outputs) == (np.int64, "class", 5, 2)
    np.savez(tmp_path / "texts.npz", x=X, y=Y, vocabulary=5.5)
    with pytest.raises(DataError, match="vocabulary as one whole number"):
        read_npz(tmp_path / "texts.npz")


def test_texts_of_another_vocabulary_do_not_fit_a_run() -> None:
    card, network = make().card(), Network("mine:net", "", (4,), 2, vocabulary=5)
    assert not explain_misfit(card, network)
    assert "vocabulary of 5 tokens, but those of texts are texts of a vocabulary of 6" in (
        explain_misfit(replace(card, vocabulary=6), network)
    )
    assert "are numbers" in explain_misfit(replace(card, vocabulary=0), network)
