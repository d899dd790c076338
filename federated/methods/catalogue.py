"""The methods by name."""

from __future__ import annotations

from collections.abc import Callable

from federated.errors import Unknown
from federated.method import Method
from federated.methods.fedavg import fedavg
from federated.methods.fedfa import fedfa, fedfa_d, fedfa_w
from federated.methods.heterofl import heterofl

__all__ = ["METHODS", "method"]

METHODS: dict[str, Callable[[], Method]] = {
    "fedavg": fedavg,
    "fedfa": fedfa,
    "fedfa-d": fedfa_d,
    "fedfa-w": fedfa_w,
    "heterofl": heterofl,
}


def method(name: str) -> Method:
    """A method by name, in any case of letters. Raises Unknown, nearest names first."""
    if name.lower() not in METHODS:
        raise Unknown("method", name, METHODS)
    return METHODS[name.lower()]()
