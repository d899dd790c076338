"""The methods by name."""

from __future__ import annotations

from collections.abc import Callable

from federated.errors import Unknown
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

__all__ = ["METHODS", "method"]

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
    """A method by name, in any case of letters. Raises Unknown, nearest names first."""
    if name.lower() not in METHODS:
        raise Unknown("method", name, METHODS)
    return METHODS[name.lower()]()
