"""Find a method by name: a built-in one, one of an installed package, or `module:function`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from federated.errors import ConfigError, EspalierError, Unknown, describe_value
from federated.method import Method
from federated.methods.allsmall_exclusivefl import allsmall, exclusivefl
from federated.methods.depthfl import depthfl
from federated.methods.dynamicfl import dynamicfl
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
from federated.runtime.extension_errors import check_parameters, find, report_failure
from federated.training.hooks import Hooks
from models.extension_lookup import ExtensionPoint, load_all

__all__ = [
    "METHODS",
    "find_loaded_hooks",
    "find_loaded_method",
    "find_method",
    "list_loaded_hooks",
    "list_loaded_methods",
]

log = logging.getLogger(__name__)

POINT = ExtensionPoint("method", "espalier.methods")

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


def find_method(name: str) -> Method:
    """Return the method of a name that the owner of this machine wrote: a built-in one, in upper or
    lower case; one of an installed package (`espalier.methods`); or `module:function`. The method's
    `name` is the given one.

    Unknown: no such method; the error names the nearest. ConfigError: it cannot be imported or
        made.
    """
    chosen = name.lower() if name.lower() in METHODS else name
    return make(chosen, find(POINT, chosen, METHODS))


def list_loaded_methods() -> dict[str, Method]:
    """Return all methods that a message may name: built in, of installed packages, or looked up by
    `find_method` before. Import nothing for a message. Ignore methods that cannot be made, with a
    warning.
    """
    made = {}
    for name, function in load_all(POINT, METHODS).items():
        try:
            made[name] = make(name, function)
        except EspalierError as error:
            log.warning("Ignored a method: %s", error)
    return made


def find_loaded_method(name: str) -> Method:
    """Return the method that a message names; see `list_loaded_methods`. Unknown: no such
    method.
    """
    known = list_loaded_methods()
    if name not in known:
        raise Unknown(POINT.noun, name, known)
    return known[name]


def list_loaded_hooks() -> dict[str, Hooks]:
    """Return the hooks of all `list_loaded_methods` by name. Built-in methods take precedence."""
    methods = sorted(list_loaded_methods().items(), key=lambda item: item[0] in METHODS)
    return {made.hooks.name: made.hooks for _, made in methods if made.hooks is not None}


def find_loaded_hooks(name: str) -> Hooks:
    """Return the hooks that a message names; see `list_loaded_methods`. Unknown: no such hooks."""
    known = list_loaded_hooks()
    if name not in known:
        raise Unknown(f"hooks of a {POINT.noun}", name, known)
    return known[name]


@cache  # every task looks up hooks
def make(name: str, function: Callable[[], Method]) -> Method:
    """Call a function that returns a method, and name the method. ConfigError: it fails."""
    if name in METHODS:
        return function()
    check_parameters(POINT.noun, name, function)
    with report_failure(POINT.noun, name):
        found = function()
    if not isinstance(found, Method):
        raise ConfigError(f"method '{name}' returned {describe_value(found)}; expected a Method")
    return replace(found, name=name)
