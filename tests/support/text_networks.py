"""A tokenizer, BERT and DistilBERT with random weights in the form of the Hugging Face Hub, and a
few pairs of sentences in the form of MultiNLI.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["PAIRS", "WORDS", "write_bert", "write_distilbert", "write_pairs", "write_tokenizer"]

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "cat", "dog", "runs", "sleeps", "no")
SPREAD = {"initializer_range": 0.4}  # so that the answers differ
PAIRS = (
    ("entailment", "a dog runs", "a dog runs"),
    ("neutral", "a dog runs", "a cat sleeps"),
    ("contradiction", "a dog runs", "no dog runs"),
    ("-", "a dog", "a cat"),  # the annotators disagreed
)


def write_tokenizer(folder: Path) -> None:
    """Write a WordPiece tokenizer that treats pairs as BERT's does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made: Any = Tokenizer(models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", **special})
    )


def import_transformers() -> Any:
    """Import the library here, since it needs PyTorch, and the tests of data run without it."""
    from models.user_networks.library_networks import import_library

    return import_library("transformers")


def write_bert(folder: Path, layers: int = 2) -> None:
    library = import_transformers()
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, **SPREAD}
    write_network(
        folder, library.BertConfig(vocab_size=len(WORDS), num_hidden_layers=layers, **sizes)
    )


def write_distilbert(folder: Path, layers: int = 1) -> None:
    library = import_transformers()
    sizes = {"dim": 32, "n_heads": 2, "hidden_dim": 64, **SPREAD}
    write_network(folder, library.DistilBertConfig(vocab_size=len(WORDS), n_layers=layers, **sizes))


def write_network(folder: Path, config: Any) -> None:
    """Write a language model, as which BERT and DistilBERT are published, and its tokenizer."""
    import torch

    torch.manual_seed(3)
    net = import_transformers().AutoModelForMaskedLM.from_config(config)
    net.save_pretrained(folder)
    write_tokenizer(folder)


def write_pairs(root: Path, copies: int = 1) -> None:
    """Write both parts of MultiNLI, and its tokenizer.

    copies: of each pair in the training part
    """
    folder = root / "mnli"
    write_tokenizer(folder)
    for part, times in (("train", copies), ("dev_matched", 1)):
        lines = [
            json.dumps(
                {"gold_label": label, "sentence1": one, "sentence2": other, "genre": "fiction"}
            )
            for label, one, other in PAIRS * times
        ]
        (folder / f"multinli_1.0_{part}.jsonl").write_text("\n".join(lines) + "\n")
