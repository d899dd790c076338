"""A run's configuration: a TOML file, the environment and flags, in that order, into one frozen
record.

[fleet]                     ESPALIER_FLEET__MIN_AGENTS=4        --set fleet.min_agents=4
min_agents = 4
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from coordinator.settings.tables import (
    Assign,
    Broker,
    Data,
    Evaluate,
    Fleet,
    Journal,
    Log,
    Metrics,
    Model,
    Positive,
    Private,
    Robust,
    Seed,
    Simulate,
    Wire,
)
from federated.errors import ConfigError, Unknown
from federated.methods.catalogue import METHODS
from federated.task import Recipe

__all__ = ["Config", "choices", "elsewhere", "load", "parse_setting", "to_json"]

PREFIX = "ESPALIER_"


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides a run. train, method: the method's settings, in either table; unnamed
    ones are its own.
    """

    name: str = ""
    method: dict[str, Any] = {}
    train: dict[str, Any] = {}
    model: Model = Model()
    data: Data = Data()
    fleet: Fleet = Fleet()
    assign: Assign = Assign()
    robust: Robust = Robust()
    private: Private = Private()
    evaluate: Evaluate = Evaluate()
    broker: Broker = Broker()
    wire: Wire = Wire()
    journal: Journal = Journal()
    simulate: Simulate = Simulate()
    log: Log = Log()
    metrics: Metrics = Metrics()
    rounds: Positive = 20
    target_accuracy: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    seed: Seed = 0

    @property
    def method_name(self) -> str:
        return str(self.method.get("name", "fedfa"))

    @property
    def settings(self) -> dict[str, Any]:
        """What the file says to the method: its own keys and those of its recipe, as one flat
        mapping.
        """
        return {**self.train, **{key: value for key, value in self.method.items() if key != "name"}}


SAME = {"train": "method", "method": "train"}
# keys that are no tables
VALUES = {
    name
    for name in Config.__struct_fields__
    if isinstance(getattr(Config(), name), int | float | str)
}


def load(
    file: Path | None,
    environment: Mapping[str, str],
    settings: Iterable[tuple[str, Any]],
    base: Mapping[str, Any] | None = None,
) -> Config:
    """The record of `base`, a TOML file, the environment and settings, the later over the earlier.
    Raises ConfigError that names the key.
    """
    tree: dict[str, Any] = dict(base or {})
    if file is not None:
        for key, value in _flatten(_read(file)):
            _put(tree, key, value, where=str(file))
    for name, text in sorted(environment.items()):
        key = name.removeprefix(PREFIX).lower().replace("__", ".")
        if name.startswith(PREFIX) and (
            key in VALUES or ("." in key and key.partition(".")[0] in Config.__struct_fields__)
        ):
            _put(tree, key, _value(text), where=name)
    for key, value in settings:
        _put(tree, key, value, where="--set " + key)
    try:
        return msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"configuration{f' {file}' if file else ''}: {_explained(str(error), tree)}"
        ) from error


def parse_setting(text: str) -> tuple[str, Any]:
    """`train.lr=0.05` as a key and a value: TOML where it is TOML, else the text itself. Raises
    ConfigError.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set: expected KEY=VALUE such as train.lr=0.05, found '{text}'")
    return key.strip(), _value(value)


def to_json(config: Config) -> dict[str, Any]:
    """The record as plain values, from which `load` makes it again."""
    plain = msgspec.to_builtins(config)
    assert isinstance(plain, dict)
    return plain


def _explained(error: str, tree: Mapping[str, Any]) -> str:
    """A validation error in the words of whoever wrote the configuration: which key, what was
    expected, what was found.
    """
    what, _, where = error.replace("`", "").partition(" - at $.")
    path = where.rstrip(".")
    if unknown := re.fullmatch(r"Object contains unknown field (\S+)", what):
        fields = (
            type(getattr(Config(), path)).__struct_fields__
            if path in Config.__struct_fields__
            else Config.__struct_fields__
        )
        return f"{path}: {Unknown('key', unknown[1], fields)}{elsewhere(unknown[1])}"
    found: Any = tree
    for key in re.findall(r"[^.\[\]]+", path):
        found = (
            found.get(key)
            if isinstance(found, Mapping)
            else found[int(key)]
            if isinstance(found, Sequence) and key.isdigit()
            else found
        )
    if what.startswith("Invalid enum value"):
        what = f"expected one of {', '.join(map(str, choices(path)))}"
    return f"{path}: {what[:1].lower()}{what[1:]}, found {found!r}"


def choices(path: str) -> tuple[str, ...]:
    """What a key may be of which there is a list."""
    kind: Any = Config
    for key in path.split("."):
        kind = get_type_hints(kind)[key]
    return get_args(kind)


def elsewhere(key: str) -> str:
    """Where a key belongs that was written into another table, as the end of a message; empty where
    it belongs nowhere.
    """
    tables = [
        name
        for name in Config.__struct_fields__
        if key in getattr(getattr(Config(), name), "__struct_fields__", ())
    ]
    if any(key in made().settings for made in METHODS.values()):
        tables.append("train" if key in Recipe.__dataclass_fields__ else "method")
    places = [f"{table}.{key}" for table in tables] + (
        [f"{key}, above the first table"] if key in VALUES else []
    )
    return f"; did you mean {' or '.join(places)}?" if places else ""


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"configuration {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration {file}: not TOML: {error}") from error


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and not prefix:
            yield from _flatten(value, f"{key}.")
        else:
            yield prefix + key, value


def _put(tree: dict[str, Any], key: str, value: Any, where: str) -> None:
    table, dot, rest = key.partition(".")
    if table not in Config.__struct_fields__:
        raise ConfigError(
            f"{where}: {Unknown('key', table, Config.__struct_fields__)}{elsewhere(table)}"
        )
    if not dot:
        tree[table] = value
        return
    inner = tree.setdefault(table, {})
    if not isinstance(inner, dict):
        raise ConfigError(f"{where}: '{table}' is a value, not a table")
    tree[table] = {**inner, rest: value}
    # one setting in two tables: the later goes over the earlier
    if (other := SAME.get(table)) and rest != "name":
        tree[other] = {key: known for key, known in tree.get(other, {}).items() if key != rest}
