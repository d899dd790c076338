"""Build classifiers of texts of `transformers`, such as BERT and DistilBERT, also with adapters.

They read token ids [N, T], padded at the end, and return logits [N, outputs]. The attention mask
and the segments of a pair of texts follow from the ids of the padding and of the separator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from models.submodel import Network

__all__ = ["build_text_adapters", "build_text_classifier", "digest_frozen"]

REDUCTION = 16  # of the features inside an adapter, the default of Pfeiffer et al.'s library
# type of a network -> the layer norm at the end of each of its layers
LAST_NORMS = {
    "bert": "output.LayerNorm",
    "distilbert": "output_layer_norm",
    "electra": "output.LayerNorm",
    "roberta": "output.LayerNorm",
}


class TextLogits(nn.Module):
    """A classifier of `transformers` that reads token ids [N, T] and returns its logits alone.

    padding: id of the tokens after the end of a text, which are masked
    separator: id of the token after each text of a pair, for a network that tells the two apart
    """

    def __init__(self, net: nn.Module, padding: int, separator: int | None) -> None:
        super().__init__()
        self.net, self.padding, self.separator = net, padding, separator

    def forward(self, x: Tensor) -> Tensor:
        more: dict[str, Tensor] = {}
        if self.separator is not None:
            ends = (x == self.separator).long()
            more["token_type_ids"] = (ends.cumsum(1) - ends).clamp(max=1)
        # attention to nothing at all, in an empty text, would be undefined
        seen = torch.cat([torch.ones_like(x[:, :1]), (x[:, 1:] != self.padding).long()], 1)
        return self.net(input_ids=x, attention_mask=seen, **more).logits  # type: ignore[no-any-return]


class Adapter(nn.Module):
    """A layer norm, and a bottleneck before it that learns: norm(x + up(relu(down(norm(x))))),
    where x [..., features] is the sum of a feed-forward layer and its input (Pfeiffer et al.,
    AdapterFusion, arXiv 2005.00247, section 3; their library's default).
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        (features,) = norm.normalized_shape
        self.norm = norm
        self.down = nn.Linear(features, max(1, features // REDUCTION))
        self.up = nn.Linear(self.down.out_features, features)
        for linear in (self.down, self.up):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.up(F.relu(self.down(self.norm(x)))))  # type: ignore[no-any-return]


def build_text_classifier(
    library: ModuleType, name: str, network: Network, outputs: int, *, trained: bool
) -> TextLogits:
    """Return a classifier of texts, by its name on the Hugging Face Hub or its local folder.

    library: `transformers`
    outputs: of its head; 0: as many as it has
    trained: with trained weights; a head of another number of outputs is random
    ValueError, OSError: there is none, or it cannot read these texts.
    """
    config = library.AutoConfig.from_pretrained(name, trust_remote_code=False)
    check_texts(config, network)
    config.num_labels = outputs or config.num_labels
    classifier = library.AutoModelForSequenceClassification
    # the other implementations of attention read values of the mask, which the meta device lacks
    options: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
    options["trust_remote_code"] = False  # by default, the library asks at the terminal
    if trained:
        options |= {"config": config, "ignore_mismatched_sizes": True}
        with silence(library):
            net = classifier.from_pretrained(name, **options)
    else:
        net = classifier.from_config(config, **options)
    pairs = getattr(config, "type_vocab_size", 1) > 1
    separator = find_separator(library, name) if pairs else None
    return TextLogits(net, config.pad_token_id, separator)


@contextmanager
def silence(library: ModuleType) -> Iterator[None]:
    """Hide the library's progress bar and its report of tensors that only the head has."""
    settings = library.logging
    level, shown = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(level)
        if shown:
            settings.enable_progress_bar()


def check_texts(config: Any, network: Network) -> None:
    """Check that a network reads texts of this length and vocabulary. Raises ValueError."""
    # RoBERTa and its kin count places from the id after that of the padding
    first = (
        (getattr(config, "pad_token_id", None) or 0) + 1 if "roberta" in config.model_type else 0
    )
    for field, least, what in (
        ("vocab_size", network.tokens, "the data's tokens"),
        ("max_position_embeddings", first + network.inputs[-1], "places of an example"),
    ):
        most = getattr(config, field, None)
        if most is None or getattr(config, "pad_token_id", None) is None:
            raise ValueError(f"a network of type {config.model_type} reads no padded texts")
        if most < least:
            raise ValueError(f"it has {field} {most}, fewer than {what}, {least}")


@lru_cache(maxsize=16)
def find_separator(library: ModuleType, name: str) -> int | None:
    """Return the id of the token that ends each text of a pair, by the network's tokenizer."""
    tokenizer = library.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    found: int | None = tokenizer.sep_token_id
    return found


def build_text_adapters(library: ModuleType, name: str, network: Network) -> TextLogits:
    """Return a classifier of texts with trained weights that are neither changed nor sent, and with
    an adapter in each layer. The adapters and the head learn; they start at random.

    ValueError, OSError: see `build_text_classifier`; or it is of a type without adapters, or its
        trained weights are not those of the run (`network.frozen`).
    """
    if not network.tokens:
        raise ValueError("adapters are for texts, but the data are numbers")
    # of a network on the meta device, only the shapes are asked for
    empty = torch.empty(0).device.type == "meta"
    made = build_text_classifier(library, name, network, network.outputs, trained=not empty)
    base: Any = made.net.base_model
    kind = base.config.model_type
    if kind not in LAST_NORMS:
        raise ValueError(
            f"expected a network of a type that supports adapters ({', '.join(LAST_NORMS)}), "
            f"found {kind}"
        )
    for part, module in base.named_children():
        if part != "pooler":  # part of the head
            freeze(module)
    for path, module in list(base.named_modules()):
        if path.endswith(f".{LAST_NORMS[kind]}") and ".attention." not in path:
            parent, _, last = path.rpartition(".")
            setattr(base.get_submodule(parent), last, Adapter(module))
    if network.frozen and not empty and (found := digest_frozen(made)) != network.frozen:
        raise ValueError(
            f"its trained weights on this machine have the sha256 {found}, but those of the run "
            f"{network.frozen}: use the same version of '{name}' on all machines"
        )
    return made


def digest_frozen(net: nn.Module) -> str:
    """Return the sha256 of the weights that `freeze` made buffers, and of any other buffers that
    are saved, in the order of their names.
    """
    learning, sums = dict(net.named_parameters()), sha256()
    for name, value in sorted(net.state_dict().items()):
        if name not in learning:
            sums.update(f"{name} {tuple(value.shape)} {value.dtype} ".encode())
            sums.update(value.cpu().numpy().tobytes())
    return sums.hexdigest()


def freeze(module: nn.Module) -> None:
    """Turn all parameters into buffers, which no method trains, sends or averages."""
    for part in module.modules():
        for name, value in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            part.register_buffer(name, value.detach())
