"""Hugging Face's classifiers of texts: masks, segments, weights, adapters and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from models.cost import cost
from models.named_network import network
from models.pretrained import load
from models.submodel import Moments, Network
from models.submodel_building import build, find_labelled, full, initial, shapes
from models.user_networks.library_networks import import_library
from models.user_networks.text_classifiers import Adapter
from tests.support.text_networks import WORDS, write_bert, write_distilbert

pytestmark = pytest.mark.skipif(not find_spec("transformers"), reason="needs the extra networks")

LENGTH = 12
TEXTS = [("a dog runs", "no dog runs"), ("a cat", "a cat sleeps no cat")]
WRITERS = {"bert": write_bert, "distilbert": write_distilbert}


@pytest.fixture(params=WRITERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    WRITERS[request.param](tmp_path)
    return tmp_path


def make(model: str, length: int = LENGTH, tokens: int = len(WORDS)) -> Network:
    return network(model, (length,), 3, Moments(vocabulary=tokens))


def tokenize(folder: Path) -> Any:
    tokenizer = import_library("transformers").AutoTokenizer.from_pretrained(folder)
    one, other = zip(*TEXTS, strict=True)
    return tokenizer(
        list(one),
        list(other),
        padding="max_length",
        max_length=LENGTH,
        return_tensors="pt",
        return_token_type_ids=True,
    )


def restore(model: Network, tensors: dict[str, torch.Tensor]) -> nn.Module:
    net = build(full(model)).eval()
    net.load_state_dict(tensors, strict=False)
    return net


def test_padding_and_segments_are_those_of_the_tokenizer(folder: Path) -> None:
    """The network answers as the library's own does, for what the tokenizer returns."""
    made = make(f"hf:{folder}")
    tensors, note = load("hf:DEFAULT", made, initial(made, 0))
    assert "the head is initialised at random" in note
    library, given = import_library("transformers"), tokenize(folder)
    theirs = library.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    head = {
        name.removeprefix("net.net."): value
        for name, value in tensors.items()
        if name not in {f"net.net.{key}" for key in theirs.base_model.state_dict()}
    }
    theirs.load_state_dict(head, strict=False)
    if theirs.config.model_type == "distilbert":
        given.pop("token_type_ids")
    with torch.no_grad():
        torch.testing.assert_close(
            restore(made, tensors)(given["input_ids"]), theirs.eval()(**given).logits
        )


def test_padding_changes_nothing_and_an_empty_text_is_defined(folder: Path) -> None:
    net = build(full(make(f"hf:{folder}"))).eval()
    ids = tokenize(folder)["input_ids"]
    longer = torch.cat([ids, torch.zeros_like(ids)], 1)
    with torch.no_grad():
        torch.testing.assert_close(net(longer), net(ids))
        assert net(torch.zeros_like(ids)).isfinite().all()


def test_only_adapters_and_the_head_are_parameters(folder: Path) -> None:
    plain, made = make(f"hf:{folder}"), make(f"hf-adapters:{folder}")
    names = set(shapes(full(made)))
    assert find_labelled(full(made)) <= names
    learned = {name.rsplit(".", 2)[-2] for name in names}
    assert learned <= {"down", "up", "dense", "classifier", "pre_classifier"}
    assert cost(full(made)).parameters < cost(full(plain)).parameters / 4
    net = build(full(made))
    kept = import_library("transformers").AutoModelForMaskedLM.from_pretrained(folder)
    theirs, ours = kept.base_model.state_dict(), net.net.net.base_model.state_dict()
    same = [name for name in theirs if name in ours]
    assert len(same) > len(theirs) / 2
    assert all(torch.equal(theirs[name], ours[name]) for name in same)


def test_an_adapter_adds_to_the_input_of_the_last_norm() -> None:
    """16 features and one hidden: down and up as chosen, beside a norm that does nothing else."""
    norm = nn.LayerNorm(16)
    adapter = Adapter(norm)
    x = torch.randn(2, 16)
    with torch.no_grad():
        adapter.down.weight.fill_(1)
        adapter.down.bias.fill_(2)  # a norm sums to 0, so relu(down(norm(x))) is 2
        adapter.up.weight.copy_(torch.arange(16.0)[:, None])
        adapter.up.bias.zero_()
        torch.testing.assert_close(adapter(x), norm(x + 2 * torch.arange(16.0)))


def test_training_moves_adapters_and_nothing_else(folder: Path) -> None:
    net = build(full(make(f"hf-adapters:{folder}"))).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    loss = nn.functional.cross_entropy(net(tokenize(folder)["input_ids"]), torch.tensor([0, 2]))
    loss.backward()
    optimiser.step()
    moved = {name for name, value in net.state_dict().items() if not value.equal(before[name])}
    learning = {name for name, _ in net.named_parameters()}
    assert moved <= learning
    assert {name for name in learning if name.endswith(("up.bias", "classifier.bias"))} <= moved


def test_other_trained_weights_than_those_of_the_run_are_refused(folder: Path) -> None:
    """Those that stay as they are count, but not the head, which the run sends."""
    made, plain = make(f"hf-adapters:{folder}"), make(f"hf:{folder}")
    assert len(made.frozen) == 64
    assert plain.frozen == ""
    load = import_library("transformers").AutoModelForMaskedLM.from_pretrained
    net = load(folder)
    next(value for name, value in net.named_parameters() if "embeddings" not in name).data += 1e-3
    net.save_pretrained(folder)
    build(full(made), "meta")  # whose shapes are the same
    with pytest.raises(ValueError, match=f"have the sha256 .* but those of the run {made.frozen}"):
        build(full(made))
    build(full(replace(made, frozen="")))


@pytest.mark.parametrize(
    ("model", "length", "tokens", "message"),
    [
        ("hf:", LENGTH, 999, "has vocab_size 10, fewer than the data's tokens, 999"),
        ("hf:", 600, len(WORDS), "max_position_embeddings 512, fewer than places of an example"),
        ("hf-adapters:", LENGTH, 0, "adapters are for texts"),
    ],
)
def test_texts_that_do_not_fit_are_refused(
    tmp_path: Path, model: str, length: int, tokens: int, message: str
) -> None:
    write_bert(tmp_path)
    with pytest.raises(ValueError, match=message):
        make(f"{model}{tmp_path}", length, tokens)


def test_a_roberta_counts_places_from_after_its_padding(tmp_path: Path) -> None:
    """Of 16 places, it uses those from 2 on, since its padding has the id 1."""
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    import_library("transformers").RobertaConfig(
        vocab_size=10, num_hidden_layers=1, max_position_embeddings=16, type_vocab_size=1, **sizes
    ).save_pretrained(tmp_path)
    ids = torch.full((1, 14), 5)
    assert build(full(make(f"hf:{tmp_path}", 14)))(ids).shape == (1, 3)
    with pytest.raises(ValueError, match="max_position_embeddings 16, fewer than places"):
        make(f"hf:{tmp_path}", 15)


@pytest.mark.parametrize("tokens", [len(WORDS), 0])
def test_code_of_a_network_is_refused_without_a_question(
    tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[object]()
    monkeypatch.setattr("builtins.input", lambda *about: asked.append(about) or "y")
    (tmp_path / "mine.py").write_text("raise SystemExit('this code ran')\n")
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"custom code|mine"):
        make(f"hf:{tmp_path}", LENGTH, tokens)
    assert not asked


def test_networks_for_numbers_refuse_texts() -> None:
    with pytest.raises(ValueError, match="it reads numbers, but the data are texts"):
        network("mlp", (LENGTH,), 3, Moments(vocabulary=10))
