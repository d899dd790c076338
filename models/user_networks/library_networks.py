"""Build networks of other libraries, named as `torchvision:NAME`, `timm:NAME`, `hf:NAME` or
`hf-adapters:NAME`.

The network gets as many outputs as the data have classes, and, where the library allows it, the
data's channels and image size. Weights are random, and `models.pretrained` loads trained ones; only
a network with adapters starts from trained ones (`models.user_networks.text_classifiers`).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from models.optional_torchvision import import_torchvision
from models.random_state import isolate_random_state
from models.submodel import Network, Submodel
from models.user_networks.text_classifiers import (
    build_text_adapters,
    build_text_classifier,
    digest_frozen,
)

__all__ = [
    "LIBRARIES",
    "UnsupportedNetwork",
    "digest_frozen_weights",
    "find_builder",
    "load_trained",
]


class UnsupportedNetwork(ValueError):
    """A library has no such network, it does not fit the data, or a user's function fails."""


Builder = Callable[[str, Network, bool], nn.Module]
"""(name, network, whether with trained weights) -> the library's network"""

# networks that return a second output while they train, unless told not to
TWO_OUTPUTS = {"googlenet", "inception_v3"}


def build_torchvision(name: str, network: Network, trained: bool) -> nn.Module:
    """Return a classifier of `torchvision.models`. Its networks read 3 channels."""
    models = import_torchvision("models")
    known = models.list_models(module=models)
    if name not in known:
        raise UnsupportedNetwork(
            f"torchvision has no classifier '{name}'; it has {', '.join(known)}"
        )
    if network.inputs[:1] != (3,):
        raise UnsupportedNetwork(
            f"torchvision's networks read 3 channels, found {network.inputs[0]}"
        )
    options: dict[str, Any] = {}
    if name.startswith("vit_"):
        options["image_size"] = network.inputs[-1]
    if name.startswith("maxvit_"):
        options["input_size"] = network.inputs[1:]
    if name in TWO_OUTPUTS:
        options |= {"aux_logits": False, "init_weights": False}
    if trained:
        return models.get_model(name, weights="DEFAULT", progress=False)  # type: ignore[no-any-return]
    return models.get_model(name, num_classes=network.outputs, **options)  # type: ignore[no-any-return]


def build_timm(name: str, network: Network, trained: bool) -> nn.Module:
    """Return a network of `timm`."""
    timm = import_library("timm")
    if not timm.is_model(name.partition(".")[0]):
        raise UnsupportedNetwork(f"timm has no network '{name}'; timm.list_models() lists them")
    if trained:
        return timm.create_model(name, pretrained=True)  # type: ignore[no-any-return]
    options: dict[str, Any] = {"num_classes": network.outputs, "in_chans": network.inputs[0]}
    if getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False):
        options["img_size"] = network.inputs[1:]
    return timm.create_model(name, **options)  # type: ignore[no-any-return]


class Logits(nn.Module):
    """A classifier of `transformers` that returns its logits alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(pixel_values=x).logits  # type: ignore[no-any-return]


def build_transformers(name: str, network: Network, trained: bool) -> nn.Module:
    """Return a classifier of images or texts of `transformers`, by its name on the Hugging Face Hub
    or its local folder. Nothing but its configuration, its tokens and its weights is loaded, no
    code.
    """
    library = import_library("transformers")
    if network.tokens:
        outputs = 0 if trained else network.outputs
        return build_text_classifier(library, name, network, outputs, trained=trained)
    classifier = library.AutoModelForImageClassification
    if trained:
        return Logits(classifier.from_pretrained(name, trust_remote_code=False))
    config = library.AutoConfig.from_pretrained(name, trust_remote_code=False)
    config.num_labels = network.outputs
    for field, value in (("num_channels", network.inputs[0]), ("image_size", network.inputs[-1])):
        if hasattr(config, field):
            setattr(config, field, value)
    return Logits(classifier.from_config(config, trust_remote_code=False))


def build_adapters(name: str, network: Network, trained: bool) -> nn.Module:
    """Return a classifier of texts of `transformers` whose trained layers stay as they are, and
    only small adapters between them learn.
    """
    if trained:
        raise UnsupportedNetwork(
            "a network with adapters has trained weights: leave out model.init"
        )
    return build_text_adapters(import_library("transformers"), name, network)


ADAPTERS = "hf-adapters"
LIBRARIES: Mapping[str, Builder] = {
    "torchvision": build_torchvision,
    "timm": build_timm,
    "hf": build_transformers,
    ADAPTERS: build_adapters,
}


def find_builder(model: str) -> Callable[[Submodel], nn.Module] | None:
    """Return the function that builds a network of a library; None for another name."""
    library, _, name = model.partition(":")
    if library not in LIBRARIES:
        return None
    build = partial(LIBRARIES[library], name)

    def build_named(submodel: Submodel) -> nn.Module:
        try:
            return build(submodel.network, False)
        except (OSError, ValueError) as error:  # OSError: it cannot be downloaded
            why = str(error).strip().splitlines()[0]
            raise UnsupportedNetwork(f"model '{model}': {why}") from error

    return build_named


@lru_cache(maxsize=16)
def digest_frozen_weights(network: Network) -> str:
    """Return the sha256 of the trained weights that each device loads itself and that stay as they
    are; empty for a network without such weights. Raises UnsupportedNetwork.
    """
    builder = find_builder(network.family)
    if builder is None or not network.family.startswith(f"{ADAPTERS}:"):
        return ""
    with isolate_random_state(0):
        return digest_frozen(builder(Submodel(replace(network, frozen=""), 1.0, ())))


def load_trained(model: str, network: Network) -> nn.Module:
    """Return a library's network with trained weights and its own number of outputs, from its site
    or the library's cache.

    model: its name, such as `timm:resnet18`
    network: the run's, for its inputs
    """
    library, _, name = model.partition(":")
    return LIBRARIES[library](name, network, True)


def import_library(name: str) -> ModuleType:
    """Import a library that imports torchvision if it is there. Raises UnsupportedNetwork if it is
    not installed.
    """
    with contextlib.suppress(ModuleNotFoundError):
        import_torchvision("ops")  # which repairs a torchvision that does not fit this torch
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UnsupportedNetwork(
            f"{name} is not installed; install it with pip install {name}"
        ) from error
