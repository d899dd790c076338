"""Check the arguments of the Python API. Each error names the argument."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from federated.errors import ArgumentError
from models.submodel import Network, Submodel

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "check_count",
    "check_is",
    "check_path",
    "check_submodel",
    "read_array",
    "read_counts",
    "read_fractions",
    "read_tensors",
]


def check_is(argument: str, value: object, kinds: tuple[type, ...], expected: str) -> None:
    """Raise ArgumentError if the value has none of these types."""
    if not isinstance(value, kinds):
        raise ArgumentError(argument, expected, value)


def check_path(argument: str, value: object) -> None:
    check_is(argument, value, (str, Path), "a path as text or a Path")


def check_count(argument: str, value: object, least: int = 1) -> None:
    """Raise ArgumentError if the value is not a whole number, or is too small."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < least:  # type: ignore[operator]
        raise ArgumentError(argument, f"a whole number of at least {least}", value)


def check_submodel(argument: str, submodel: object, network: Network) -> None:
    """Raise ArgumentError for anything but a submodel of this network. Networks of one class differ
    if their weights do.
    """
    check_is(argument, submodel, (Submodel,), "a submodel of menu(network)")
    assert isinstance(submodel, Submodel)
    if submodel.network != network:
        raise ArgumentError(
            argument,
            f"a submodel of menu(network) for this network ({describe(network)})",
            f"{submodel.name} of another one ({describe(submodel.network)})",
        )


def describe(network: Network) -> str:
    size = f"-{network.preset}" if network.preset else ""
    return f"{network.title}{size}, inputs={network.inputs}, outputs={network.outputs}"


def read_array(argument: str, given: Any) -> NDArray[Any]:
    """Return numbers as an array. Raises ArgumentError."""
    import numpy as np

    expected = "an array of numbers [n, ...]"
    try:
        array = np.asarray(given)
    except Exception as error:  # whatever an array of another library raises
        raise ArgumentError(argument, f"{expected} ({error})", given) from error
    if array.dtype.kind not in "biuf" or not array.ndim:
        raise ArgumentError(argument, expected, given)
    return array


def read_counts(argument: str, values: Any, example: str) -> tuple[int, ...]:
    """Return whole numbers of at least 1 as a tuple. Raises ArgumentError."""
    expected = f"whole numbers of at least 1, such as {example}"
    try:
        found = tuple(values)
        for one in found:
            check_count(argument, one)
    except (TypeError, ArgumentError) as error:
        raise ArgumentError(argument, expected, values) from error
    return found


def read_fractions(argument: str, values: Any) -> tuple[float, ...]:
    """Return at least one number above 0 and at most 1 as a tuple. Raises ArgumentError."""
    try:
        found = tuple(values)
        fits = bool(found) and all(0 < one <= 1 for one in found)
    except TypeError:
        fits = False
    if not fits:
        expected = "numbers above 0 and at most 1, such as (0.5, 1.0)"
        raise ArgumentError(argument, expected, values)
    return found


def read_tensors(argument: str, given: Any) -> Mapping[str, Any]:
    """Return the tensors of a module, or the given ones, by name. Raises ArgumentError."""
    from torch import Tensor, nn

    if isinstance(given, nn.Module):
        return given.state_dict()
    if not isinstance(given, Mapping):
        raise ArgumentError(argument, "an nn.Module or a mapping of names to tensors", given)
    for name, value in given.items():
        check_is(f"{argument}[{name!r}]", value, (Tensor,), "a tensor")
    return given
