"""Turn a method, network or data set that a Python program passed as an object into a name, since a
run and its devices refer to everything by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from federated.errors import ArgumentError
from models.given_objects import give_function

__all__ = ["name_data", "name_method", "name_model"]


def name_method(method: Any) -> str:
    """Return the name of a method. Raises ArgumentError for something else."""
    if isinstance(method, str):
        return method
    if not callable(method):
        raise ArgumentError("method", "a name or a function that returns a Method", method)
    return give_function(method)


def name_model(model: Any) -> str:
    """Return the name of a network. Raises ArgumentError for something else."""
    if isinstance(model, str):
        return model
    from torch import nn

    from models.user_networks.given_network import give_network

    if isinstance(model, nn.Module):
        return give_network(model)
    if not callable(model):
        expected = "a name, an nn.Module or a function that returns one"
        raise ArgumentError("model", expected, model)
    return give_function(model)


def name_data(data: Any) -> str:
    """Return the name of a data set. Raises DataError for something else."""
    if isinstance(data, str | Path):
        return str(data)
    if callable(data):
        return give_function(data)
    from federated.data.given_data import give_data

    return give_data(data)
