"""Validate settings as records: the base classes of their tables, and errors that name the key, the
expected and the found value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from federated.errors import SettingError, Unknown

__all__ = ["Natural", "Record", "Seed", "Settings", "list_changed", "validate"]

Natural = Annotated[int, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, lt=2**62)]
LIMIT = 1 << 63  # messages and databases hold no larger whole number
R = TypeVar("R", bound="Record")
NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    tuple: "a list",
}
BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all tables of settings."""


class Settings(Record, frozen=True):
    """A method's settings, read by name, and fields of the run: the base of the record that each
    method has (see `federated.method.Method.record`).
    """

    seed: Annotated[Seed, Meta(description="Seed of everything random in the run.")] = 0
    rounds: Annotated[Natural, Meta(description="Rounds of the run; 0: unknown.")] = 0

    def __getitem__(self, key: str, /) -> Any:
        if key not in self:
            raise KeyError(key)
        return getattr(self, key)

    def __contains__(self, key: object, /) -> bool:
        return key in self.__struct_fields__


def list_changed(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from their defaults, as plain values. An agent of an earlier
    version, which lacks new settings, accepts them unless the run uses a new one.
    """
    plain = msgspec.to_builtins(settings)
    fields = msgspec.structs.fields(settings)
    return {one.name: plain[one.name] for one in fields if settings[one.name] != one.default}


def validate(
    kind: type[R],
    tree: Mapping[str, Any],
    where: str,
    hint: Callable[[str], str] = lambda key: "",
) -> R:
    """Convert plain values to a record.

    where: name of the source, at the start of an error.
    hint: returns a text for the end of an error about an unknown key.
    Raises SettingError with the key, the expected and the found value; for an unknown key, with the
    nearest known ones.
    """
    for path, number in list_numbers(tree):
        if not math.isfinite(number):
            problem = f"{path}: expected a finite number, found {number}"
            raise SettingError(where, path, problem)
        if isinstance(number, int) and abs(number) >= LIMIT:
            problem = f"{path}: expected a whole number below 2^63 in size, found {number}"
            raise SettingError(where, path, problem)
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise SettingError(where, *explain_error(str(error), kind, tree, hint)) from error


def list_numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in plain values with its path, such as `fleet.deadline` or `widths[0]`."""
    if isinstance(value, float | int):
        yield path, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from list_numbers(one, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from list_numbers(one, f"{path}[{index}]")


def explain_error(
    error: str, kind: type[Record], tree: Mapping[str, Any], hint: Callable[[str], str]
) -> tuple[str, str]:
    """Return the path of a validation error of msgspec, and the error as `path: expected ..., found
    ...`.
    """
    what, _, path = error.replace("`", "").partition(" - at $")
    expected, found, place = follow_path(kind, tree, path)
    start = f"{place}: " if place else ""
    if unknown := re.fullmatch(r"Object contains unknown field (.+)", what):
        known = Unknown("key", unknown[1], expected.__struct_fields__)
        path = f"{place}.{unknown[1]}".lstrip(".")
        return path, f"{start}{known}{hint(unknown[1])}"
    return place, f"{start}expected {describe_type(expected)}, found {spell_value(found)}"


def spell_value(value: Any) -> str:
    """Return a value as a configuration spells it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def follow_path(kind: Any, value: Any, path: str) -> tuple[Any, Any, str]:
    """Return the type and the value at a path such as `.assign.submodels[...]` or `.widths[0]`, and
    the path to show. msgspec writes `...` for the key of a dict: the first with an invalid value.
    """
    place = ""
    for key in re.findall(r"[^.\[\]]+|\.\.\.", path):
        members = list_alternatives(kind)
        if key == "...":
            kind = get_args(members[0])[1]
            key, value = next(item for item in value.items() if not is_valid(item[1], kind))
            place += f".{key}"
        elif isinstance(value, Mapping):
            kind, value = get_type_hints(members[0], include_extras=True)[key], value[key]
            place += f".{key}"
        else:
            kind = next(get_args(one)[0] for one in members if get_origin(one) is tuple)
            value = value[int(key)]
            place += f"[{key}]"
    return kind, value, place.lstrip(".")


def is_valid(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def list_alternatives(kind: Any) -> list[Any]:
    """Return the types of a union, or the type itself, without descriptions and None."""
    if get_origin(kind) is Annotated:
        return list_alternatives(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [one for part in get_args(kind) for one in list_alternatives(part)]
    return [] if kind is NoneType else [kind]


def describe_type(kind: Any) -> str:
    """Return a type and its bounds in words, such as "a whole number of at least 1"."""
    if get_origin(kind) in (Union, UnionType):
        parts = [describe_type(part) for part in get_args(kind) if part is not NoneType]
        return " or ".join(dict.fromkeys(parts))
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        limits = {
            name: bound
            for note in notes
            for name in BOUNDS
            if (bound := getattr(note, name)) is not None
        }
        return f"{describe_type(inner)}{describe_bounds(limits)}"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return NAMES.get(get_origin(kind) or kind, "a table")


def describe_bounds(limits: Mapping[str, float]) -> str:
    """Return limits, by their names in `BOUNDS`, in words."""
    plain = {
        name: f"{bound:g}" if isinstance(bound, float) else str(bound)
        for name, bound in limits.items()
    }
    if plain.keys() == {"ge", "le"}:
        return f" between {plain['ge']} and {plain['le']}"
    text = " and ".join(f"{word} {plain[name]}" for name, word in BOUNDS.items() if name in plain)
    return f" of {text}" if text.startswith("at ") else f" {text}" if text else ""
