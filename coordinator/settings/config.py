"""A run's configuration: a TOML file, the environment and flags, in that order, into one frozen
record.

[fleet]                     ESPALIER_FLEET__MIN_AGENTS=4        --set fleet.min_agents=4
min_agents = 4
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from coordinator.settings.services import Broker, Log, Metrics
from coordinator.settings.tables import (
    Assign,
    Data,
    Evaluate,
    Fleet,
    Journal,
    Model,
    Observe,
    Positive,
    Private,
    Robust,
    Simulate,
    Wire,
)
from federated.errors import ConfigError, Unknown, UsageError
from federated.settings import MethodSettings, Record, Seed, validated
from federated.task import Recipe

__all__ = [
    "METHOD",
    "Config",
    "elsewhere",
    "load",
    "load_tables",
    "parse_setting",
    "read_tables",
    "table_of",
    "to_json",
]

PREFIX = "ESPALIER_"


METHOD = "fedfa"  # where the configuration names none


class Config(Record, frozen=True, dict=True):
    """Everything that decides a run. The tables `method` and `train` hold what was given; the
    validated settings are in `settings`.
    """

    name: Annotated[
        str, Meta(description="Name of the run; empty: method and data, numbered if taken.")
    ] = ""
    rounds: Annotated[Positive, Meta(description="Number of rounds.")] = 20
    target_accuracy: Annotated[
        float, Meta(ge=0, le=1, description="Stop when the full network reaches this; 0: never.")
    ] = 0.0
    seed: Annotated[Seed, Meta(description="Seed of everything random in the run.")] = 0
    method: dict[str, Any] = msgspec.field(default_factory=dict)
    train: dict[str, Any] = msgspec.field(default_factory=dict)
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
    observe: Observe = Observe()

    @property
    def method_name(self) -> str:
        return str(self.method.get("name", METHOD))

    @cached_property
    def settings(self) -> MethodSettings:
        """The validated settings of the method and its recipe, with the run's seed and rounds.
        Raises Unknown for a method that does not exist, UsageError, ConfigError.
        """
        # not at the top: these load PyTorch, which reading a stored run does not need
        from federated.engine.private import uniform_settings
        from federated.method import configure
        from federated.methods.catalogue import METHODS, method

        chosen = method(self.method_name)
        if self.private.noise:
            chosen = replace(chosen, settings=uniform_settings(chosen.settings))
        given = {**self.train, **{key: one for key, one in self.method.items() if key != "name"}}
        try:
            return configure(chosen, given, seed=self.seed, rounds=self.rounds)
        except Unknown as error:
            having = [name for name, made in METHODS.items() if error.name in made().settings]
            where = f"; a setting of {', '.join(having)}" if having else elsewhere(error.name)
            raise UsageError(f"{error}{where}") from error


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
    """The record of `base`, a TOML file, the environment and settings, the later over the earlier,
    with valid settings of its method. Raises ConfigError or UsageError that names the key.
    """
    config = load_tables(file, environment, settings, base)
    try:
        _ = config.settings  # raises for settings that the method does not take
    except ConfigError as error:
        raise ConfigError(f"configuration {file}: {error}" if file else str(error)) from error
    return config


def load_tables(
    file: Path | None,
    environment: Mapping[str, str],
    settings: Iterable[tuple[str, Any]],
    base: Mapping[str, Any] | None = None,
) -> Config:
    """The same without a check of the method's settings, which a run that is resumed has by itself.
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
    return read_tables(tree, f"configuration {file}" if file else "configuration")


def read_tables(tree: Mapping[str, Any], where: str = "configuration") -> Config:
    """The record of plain values, such as those of a stored run. The method's settings are
    validated when they are first used. Raises ConfigError that names the key.
    """
    return validated(Config, tree, where, elsewhere)


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


def elsewhere(key: str) -> str:
    """Where a key belongs that was written into another table, as the end of a message; empty where
    it belongs nowhere.
    """
    # not at the top: it loads PyTorch, which a configuration without mistakes does not need
    from federated.methods.catalogue import METHODS

    tables = [
        name
        for name in Config.__struct_fields__
        if key in getattr(getattr(Config(), name), "__struct_fields__", ())
    ]
    if any(key in made().settings for made in METHODS.values()):
        tables.append(table_of(key))
    places = [f"{table}.{key}" for table in tables] + (
        [f"{key}, above the first table"] if key in VALUES else []
    )
    return f"; did you mean {' or '.join(places)}?" if places else ""


def table_of(key: str) -> str:
    """The table in which a method's setting is expected; the other one takes it, too."""
    return "train" if key in Recipe.__dataclass_fields__ else "method"


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
