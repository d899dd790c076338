"""What settings are made of: frozen records that msgspec validates, with errors that name the key,
what was expected and what was found.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from federated.errors import ConfigError, Unknown

__all__ = ["MethodSettings", "Natural", "Record", "Seed", "Settings", "validated"]

Natural = Annotated[int, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, lt=2**62)]
R = TypeVar("R", bound="Record")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every table of settings."""


class Settings(Protocol):
    """A method's settings, read by name."""

    def __getitem__(self, key: str, /) -> Any: ...
    def __contains__(self, key: object, /) -> bool: ...
    def get(self, key: str, default: Any = None, /) -> Any: ...
    def keys(self) -> Iterable[str]: ...


class MethodSettings(Record, frozen=True):
    """Base of the settings of every method (see `federated.method.Method.record`): fields that come
    from the run itself, and access by name.
    """

    seed: Annotated[Seed, Meta(description="Seed of everything random in the run.")] = 0
    rounds: Annotated[Natural, Meta(description="Rounds of the run; 0: not known.")] = 0

    def __getitem__(self, key: str, /) -> Any:
        if key not in self:
            raise KeyError(key)
        return getattr(self, key)

    def __contains__(self, key: object, /) -> bool:
        return key in self.__struct_fields__

    def get(self, key: str, default: Any = None, /) -> Any:
        return getattr(self, key) if key in self else default

    def keys(self) -> KeysView[str]:
        return dict.fromkeys(self.__struct_fields__).keys()


def validated(
    kind: type[R],
    tree: Mapping[str, Any],
    where: str,
    hint: Callable[[str], str] = lambda key: "",
) -> R:
    """The record of plain values. where: what is read, the start of an error. hint: the end of an
    error about an unknown key.

    Raises ConfigError that names the key, what was expected, what was found, and for an unknown key
    the nearest known ones.
    """
    for path, number in numbers(tree):
        if not math.isfinite(number):
            raise ConfigError(f"{where}: {path}: expected a finite number, found {number}")
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {explain(str(error), kind, tree, hint)}") from error


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every float in plain values, with its path such as `fleet.deadline` or `widths[0]`."""
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from numbers(one, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from numbers(one, f"{path}[{index}]")


def explain(
    error: str, kind: type[Record], tree: Mapping[str, Any], hint: Callable[[str], str]
) -> str:
    """A validation error of msgspec as `path: expected ..., found ...`."""
    what, _, path = error.replace("`", "").partition(" - at $")
    path = path.lstrip(".")
    expected, found = descend(kind, tree, path)
    if unknown := re.fullmatch(r"Object contains unknown field (.+)", what):
        known = Unknown("key", unknown[1], expected.__struct_fields__)
        return f"{path}: {known}{hint(unknown[1])}" if path else f"{known}{hint(unknown[1])}"
    if get_origin(expected) is Literal:
        what = f"expected one of {', '.join(map(str, get_args(expected)))}"
    if int in get_args(expected):  # of a union msgspec names only the type of the value
        what = what.replace("Expected float ", "expected int or float ")
    return f"{path}: {what[:1].lower()}{what[1:]}, found {found!r}"


def descend(kind: Any, value: Any, path: str) -> tuple[Any, Any]:
    """The type and the value at a path such as `assign.submodels[...]` or `widths[0]`. msgspec does
    not name the key of a dict: there the value is the dict.
    """
    for key in re.findall(r"[^.\[\]]+|\.\.\.", path):
        if key == "...":
            kind = get_args(kind)[1]
        elif isinstance(value, Mapping):
            kind, value = get_type_hints(kind)[key], value[key]
        elif isinstance(value, Sequence):
            kind, value = (get_args(kind) or (Any,))[0], value[int(key)]
    return kind, value
