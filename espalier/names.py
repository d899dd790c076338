"""Names of what a program passes as an object: a run and its devices know everything by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from federated.errors import ConfigError
from models.given_objects import give_function

__all__ = ["name_data", "name_method", "name_model"]


def name_method(method: Any) -> str:
    """Return the name of a method. Raises ConfigError for something else."""
    if isinstance(method, str):
        return method
    if not callable(method):
        raise ConfigError(
            f"method: expected a name or a function that returns a Method, found {describe(method)}"
        )
    return give_function(method)


def name_model(model: Any) -> str:
    """Return the name of a network. Raises ConfigError for something else."""
    if isinstance(model, str):
        return model
    from torch import nn

    from models.user_networks.given_network import give_network

    if isinstance(model, nn.Module):
        return give_network(model)
    if not callable(model):
        raise ConfigError(
            f"model: expected a name, an nn.Module or a function that returns one, found "
            f"{describe(model)}"
        )
    return give_function(model)


def name_data(data: Any) -> str:
    """Return the name of a data set. Raises DataError for something else."""
    if isinstance(data, str | Path):
        return str(data)
    if callable(data):
        return give_function(data)
    from federated.data.given_data import give_data

    return give_data(data)


def describe(value: object) -> str:
    return f"a {type(value).__name__}"
