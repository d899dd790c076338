"""Find a family of networks by name.

A family is a key of FAMILIES, an entry point of the group `espalier.families`, a network of another
library (`models.user_networks.library_networks`), or `module:attribute`: a `Family`, or a function
that returns a network (`models.user_networks.user_network`).

`models` does not use the project's errors: an unknown model raises `LookupError(name, known
names)`, and a model that cannot be built raises `ValueError`. Callers turn them into `Unknown`
and `ConfigError` (`federated.runtime.extension_errors.explain_lookup`).
"""

from __future__ import annotations

from functools import lru_cache

from models.extension_lookup import ExtensionPoint, import_member, known_names, load_all, lookup
from models.families.densenet import DENSENET
from models.families.efficientnet import EFFICIENTNET
from models.families.lenet import LENET
from models.families.mlp import MLP
from models.families.mobilenet import MOBILENET
from models.families.preresnet import PRERESNET
from models.families.resnet import RESNET
from models.families.resnet1d import RESNET1D
from models.families.transformer import TRANSFORMER
from models.families.vgg import VGG
from models.families.vit import VIT
from models.family import Family, list_spellings
from models.submodel import Network
from models.user_networks.library_networks import find_builder
from models.user_networks.user_network import own

__all__ = ["FAMILIES", "POINT", "family", "has_family", "parse"]

POINT = ExtensionPoint("model", "espalier.families", Family)

FAMILIES: dict[str, Family] = {
    "densenet": DENSENET,
    "efficientnet": EFFICIENTNET,
    "lenet": LENET,
    "mlp": MLP,
    "mobilenet": MOBILENET,
    "preresnet": PRERESNET,
    "resnet": RESNET,
    "resnet1d": RESNET1D,
    "transformer": TRANSFORMER,
    "vgg": VGG,
    "vit": VIT,
}


def parse(model: str) -> tuple[str, str]:
    """Return the family and the preset of a name that the owner of this machine wrote.
    LookupError(model, known names): unknown model. ValueError: it cannot be imported.
    """
    module, colon, attribute = model.rpartition(":")
    name, _, preset = attribute.partition("-")
    if colon:
        name = f"{module}:{name}"
        known = import_family(name)
        if known is None:
            return model, ""
    elif name in FAMILIES or name in known_names(POINT, FAMILIES):
        known = lookup(POINT, name, FAMILIES)
    else:
        raise LookupError(model, model_names())
    if preset not in {"", *known.presets}:
        raise LookupError(model, tuple(list_spellings(name, known)) if colon else model_names())
    return name, preset or known.default


def model_names() -> tuple[str, ...]:
    """Return every family, alone and with each of its presets."""
    return tuple(
        f for name, known in load_all(POINT, FAMILIES).items() for f in list_spellings(name, known)
    )


@lru_cache(maxsize=64)
def import_family(name: str) -> Family | None:
    """Import the family "module:attribute"; None if it is something else or cannot be imported."""
    if find_builder(name):
        return None
    try:
        found: Family = import_member(name, POINT.member)
    except ValueError:
        return None
    return found


def has_family(name: str) -> bool:
    """Return True if a family that a message names can be built without importing anything."""
    return name in FAMILIES or name in load_all(POINT, FAMILIES)


def family(made: Network) -> Family:
    """Return the family of a network. ValueError: there is none of its name."""
    name = made.family
    if name in FAMILIES:
        return FAMILIES[name]
    if ":" in name:
        return import_family(name) or own(made)
    if not has_family(name):
        raise ValueError(
            f"model '{name}' is not on this machine: install the package that adds it "
            f"(entry points {POINT.group})"
        )
    return load_all(POINT, FAMILIES)[name]
