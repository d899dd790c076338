"""The methods by name."""

from __future__ import annotations

from collections.abc import Callable

from federated.errors import Unknown
from federated.method import Method
from federated.methods.allsmall import allsmall
from federated.methods.exclusivefl import exclusivefl
from federated.methods.fedavg import fedavg
from federated.methods.fedfa import fedfa, fedfa_d, fedfa_w
from federated.methods.fedrolex import fedrolex
from federated.methods.fjord import fjord
from federated.methods.flexifed import flexifed
from federated.methods.heterofl import heterofl

__all__ = ["METHODS", "method"]

METHODS: dict[str, Callable[[], Method]] = {
    "allsmall": allsmall,
    "exclusivefl": exclusivefl,
    "fedavg": fedavg,
    "fedfa": fedfa,
    "fedfa-d": fedfa_d,
    "fedfa-w": fedfa_w,
    "fedrolex": fedrolex,
    "fjord": fjord,
    "flexifed": flexifed,
    "heterofl": heterofl,
}


def method(name: str) -> Method:
    """A method by name, in any case of letters. Raises Unknown, nearest names first."""
    if name.lower() not in METHODS:
        raise Unknown("method", name, METHODS)
    return METHODS[name.lower()]()
