"""The methods by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from federated.errors import ConfigError, Unknown
from federated.method import Method
from federated.methods.allsmall import allsmall
from federated.methods.depthfl import depthfl
from federated.methods.dynamicfl import dynamicfl
from federated.methods.exclusivefl import exclusivefl
from federated.methods.fedavg import fedavg
from federated.methods.fedfa import fedfa, fedfa_d, fedfa_w
from federated.methods.fednova import fednova
from federated.methods.fedopt import fedadagrad, fedadam, fedavgm, fedyogi
from federated.methods.fedprox import fedprox
from federated.methods.fedrolex import fedrolex
from federated.methods.fjord import fjord
from federated.methods.flexifed import flexifed
from federated.methods.heterofl import heterofl
from federated.methods.inclusivefl import inclusivefl
from federated.methods.inco import inco_avg, inco_moon, inco_nova, inco_prox, inco_scaffold
from federated.methods.moon import moon
from federated.methods.nefl import nefl_d, nefl_do, nefl_w, nefl_wd
from federated.methods.recipfl import recipfl
from federated.methods.scaffold import scaffold
from federated.methods.scalefl import scalefl
from federated.runtime.plugins import find
from federated.training.hooks import Hooks
from models.extensions import Kind, loaded

__all__ = ["METHODS", "hooks", "loaded_hooks", "loaded_method", "loaded_methods", "method"]

log = logging.getLogger(__name__)

KIND = Kind("method", "espalier.methods")

METHODS: dict[str, Callable[[], Method]] = {
    "allsmall": allsmall,
    "depthfl": depthfl,
    "dynamicfl": dynamicfl,
    "exclusivefl": exclusivefl,
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedavg": fedavg,
    "fedavgm": fedavgm,
    "fedfa": fedfa,
    "fedfa-d": fedfa_d,
    "fedfa-w": fedfa_w,
    "fednova": fednova,
    "fedprox": fedprox,
    "fedrolex": fedrolex,
    "fedyogi": fedyogi,
    "fjord": fjord,
    "flexifed": flexifed,
    "heterofl": heterofl,
    "inclusivefl": inclusivefl,
    "inco-avg": inco_avg,
    "inco-moon": inco_moon,
    "inco-nova": inco_nova,
    "inco-prox": inco_prox,
    "inco-scaffold": inco_scaffold,
    "moon": moon,
    "nefl-d": nefl_d,
    "nefl-do": nefl_do,
    "nefl-w": nefl_w,
    "nefl-wd": nefl_wd,
    "recipfl": recipfl,
    "scaffold": scaffold,
    "scalefl": scalefl,
}


def method(name: str) -> Method:
    """The method of a name that the owner of this machine wrote: built in, in any case of letters,
    of an installed package (`espalier.methods`), or `module:function`. Its `name` is this one.

    Raises Unknown, nearest names first; ConfigError for one that cannot be imported or made.
    """
    chosen = name.lower() if name.lower() in METHODS else name
    return make(chosen, find(KIND, chosen, METHODS))


def loaded_methods() -> dict[str, Method]:
    """All methods that a message may name: built in, of installed packages, or looked up by
    `method` before. Nothing is imported for a message. One that cannot be made is left out, with a
    warning.
    """
    made = {}
    for name, function in loaded(KIND, METHODS).items():
        try:
            made[name] = make(name, function)
        except ConfigError as error:
            log.warning("left out: %s", error)
    return made


def loaded_method(name: str) -> Method:
    """The method of a name from a message; see `loaded_methods`. Raises Unknown."""
    known = loaded_methods()
    if name not in known:
        raise Unknown(KIND.noun, name, known)
    return known[name]


def loaded_hooks() -> dict[str, Hooks]:
    """The hooks of all `loaded_methods` by their names, which built-in methods have first."""
    methods = sorted(loaded_methods().items(), key=lambda item: item[0] in METHODS)
    return {made.hooks.name: made.hooks for _, made in methods if made.hooks is not None}


def hooks(name: str) -> Hooks:
    """The hooks of a name from a message; see `loaded_methods`. Raises Unknown."""
    known = loaded_hooks()
    if name not in known:
        raise Unknown("hooks", name, known)
    return known[name]


@cache  # every task looks up hooks, and a method is the same each time
def make(name: str, function: Callable[[], Method]) -> Method:
    """The method that a function returns, under the name that it is selected by. Raises
    ConfigError.
    """
    if name in METHODS:
        return function()
    try:
        found = function()
    except Exception as error:  # whatever a foreign function raises
        raise ConfigError(f"method '{name}': {type(error).__name__}: {error}") from error
    if not isinstance(found, Method):
        raise ConfigError(f"method '{name}' returned a {type(found).__name__}; expected a Method")
    return replace(found, name=name)
