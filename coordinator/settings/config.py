"""Read a run's configuration from a TOML file, the environment and flags into one frozen record.
Later sources override earlier ones.

[fleet]                     ESPALIER_FLEET__MIN_AGENTS=4        --set fleet.min_agents=4
min_agents = 4
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta

from coordinator.settings.config_tables import (
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
    Wire,
)
from coordinator.settings.service_tables import Broker, Http, Log, Metrics, Phones
from coordinator.settings.simulation_table import Simulate
from federated.defaults import METHOD
from federated.errors import ConfigError, EspalierError, SettingError, Unknown, UsageError
from federated.settings_validation import Record, Seed, Settings, validate
from federated.task import Recipe

__all__ = [
    "Config",
    "describe_key",
    "find_table",
    "flatten",
    "load",
    "load_tables",
    "parse_setting",
    "read_tables",
    "read_toml",
    "to_json",
]

PREFIX = "ESPALIER_"


class Config(Record, frozen=True, dict=True):
    """The configuration of a run. The tables `method` and `train` hold values as given; `settings`
    holds the validated ones.
    """

    name: Annotated[
        str,
        Meta(description="Name of the run; empty: method and data, numbered if the name is taken."),
    ] = ""
    rounds: Annotated[Positive, Meta(description="Number of rounds.")] = 20
    target_accuracy: Annotated[
        float,
        Meta(ge=0, le=1, description="Stop when the full network reaches this accuracy; 0: never."),
    ] = 0.0
    seed: Annotated[Seed, Meta(description="Seed of all randomness in the run.")] = 0
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
    http: Http = Http()
    journal: Journal = Journal()
    simulate: Simulate = Simulate()
    log: Log = Log()
    metrics: Metrics = Metrics()
    phones: Phones = Phones()
    observe: Observe = Observe()

    @property
    def method_name(self) -> str:
        return str(self.method.get("name", METHOD))

    @cached_property
    def settings(self) -> Settings:
        """Return the validated settings of the method and its recipe, with the run's seed and
        rounds. Raises Unknown for an unknown method, ConfigError.
        """
        # not at the top: these load PyTorch, which reading a stored run does not need
        from federated.engine.differential_privacy import uniform_settings
        from federated.method import configure
        from federated.methods.catalogue import METHODS, find_method

        chosen = find_method(self.method_name)
        if self.private.noise:
            chosen = replace(chosen, settings=uniform_settings(chosen.settings))
        given = self.train | {key: value for key, value in self.method.items() if key != "name"}
        try:
            return configure(chosen, given, seed=self.seed, rounds=self.rounds)
        except Unknown as error:
            methods = [name for name, make in METHODS.items() if error.name in make().settings]
            hint = f"; a setting of {', '.join(methods)}" if methods else suggest_place(error.name)
            raise SettingError("", self.locate(error.name), f"{error}{hint}") from error
        except SettingError as error:
            place = self.locate(error.key)
            problem = f"{place.partition('.')[0]}.{error.problem}"
            if self.private.noise and error.key == "weighting":
                problem += "; a private run (private.noise) gives every update the same weight"
            raise SettingError("", place, problem) from error

    def locate(self, key: str) -> str:
        """Return the path of a method's setting, in the table that contains it."""
        return f"{'method' if key.partition('[')[0] in self.method else 'train'}.{key}"


TWINS = {"train": "method", "method": "train"}
# keys above the first table
TOP_LEVEL = {
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
    """Return the configuration of `base`, a TOML file, the environment and settings; later ones
    override earlier ones. Raises ConfigError that names the key and its source, also for a wrong
    setting of the method; Unknown for an unknown method.
    """
    tree, sources = merge(file, environment, settings, base)
    with name_source(sources):
        config = read_tables(tree, "")
        _ = config.settings  # raises for wrong settings of the method
    return config


def load_tables(
    file: Path | None,
    environment: Mapping[str, str],
    settings: Iterable[tuple[str, Any]],
    base: Mapping[str, Any] | None = None,
) -> Config:
    """Return the same without a check of the method's settings, which a resumed run has stored.
    Raises ConfigError that names the key and its source.
    """
    tree, sources = merge(file, environment, settings, base)
    with name_source(sources):
        return read_tables(tree, "")


def merge(
    file: Path | None,
    environment: Mapping[str, str],
    settings: Iterable[tuple[str, Any]],
    base: Mapping[str, Any] | None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of all sources, and for each key of the file and the environment the source
    that an error names. Raises ConfigError.
    """
    tree: dict[str, Any] = dict(base or {})
    sources: dict[str, str] = {}
    if file is not None:
        for key, value in flatten(read_toml(file)):
            sources[key] = f"configuration {file}"
            set_key(tree, key, value, sources[key])
    for name, text in sorted(environment.items()):
        key = name.removeprefix(PREFIX).lower().replace("__", ".")
        # without a table, it may be a variable of something else, such as ESPALIER_DATA
        if name.startswith(PREFIX) and (key in TOP_LEVEL or "." in key):
            sources[key] = name
            set_key(tree, key, parse_value(text, name), name)
    for key, value in settings:
        sources.pop(key, None)  # the error names the key
        set_key(tree, key, value, "")
    return tree, sources


@contextmanager
def name_source(sources: Mapping[str, str]) -> Iterator[None]:
    """Name the source of a wrong setting at the start of its error."""
    try:
        yield
    except SettingError as error:
        # the path may lead into a value, such as `assign.submodels.pi` or `method.widths[0]`
        found = [
            key
            for key in sources
            if error.key == key or error.key.startswith((f"{key}.", f"{key}["))
        ]
        source = sources[max(found, key=len)] if found else ""
        raise SettingError(source, error.key, error.problem) from error
    except EspalierError as error:  # of the method itself
        if source := sources.get("method.name", ""):
            error.args = (f"{source}: {error}",)
        raise


def read_tables(tree: Mapping[str, Any], where: str = "configuration") -> Config:
    """Return the configuration of plain values, such as those of a stored run. The method's
    settings are validated when they are first used. Raises ConfigError that names the key.
    """
    return validate(Config, tree, where, suggest_place)


def parse_setting(text: str) -> tuple[str, Any]:
    """Return the key and value of a text such as `train.lr=0.05`. A value that is not TOML is
    taken as text. Raises UsageError, ConfigError.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set: expected KEY=VALUE such as train.lr=0.05, found '{text}'")
    return key.strip(), parse_value(value, f"--set {key.strip()}")


def describe_key(key: str) -> tuple[str, Any]:
    """Return the description and the default of a key such as `fleet.deadline`. That of
    `method.name` has no description of its own.
    """
    if key == "method.name":
        return "", METHOD
    table, _, name = key.rpartition(".")
    record = getattr(Config(), table) if table else Config()
    *_, note = get_type_hints(type(record), include_extras=True)[name].__metadata__
    return note.description, getattr(record, name)


def to_json(config: Config) -> dict[str, Any]:
    """Return the configuration as plain values, which `load` accepts as its base."""
    plain = msgspec.to_builtins(config)
    assert isinstance(plain, dict)
    return plain


def suggest_place(key: str, spell: Callable[[str, str], str] = "{}.{}".format) -> str:
    """Return the tables that take a key, as the end of an error message; empty if none does.

    spell: returns how to set a key of a table.
    """
    # not at the top: it loads PyTorch, which a configuration without mistakes does not need
    from federated.methods.catalogue import METHODS

    tables = [
        name
        for name in Config.__struct_fields__
        if key in getattr(getattr(Config(), name), "__struct_fields__", ())
    ]
    if any(key in make().settings for make in METHODS.values()):
        tables.append(find_table(key))
    places = [spell(table, key) for table in tables] + (
        [f"{key}, above the first table"] if key in TOP_LEVEL else []
    )
    return f"; did you mean {' or '.join(places)}?" if places else ""


def spell_argument(table: str, key: str) -> str:
    """Return a key of a table as an argument of `espalier.run`, whose `method` is only a name."""
    return f'{"train" if table == "method" else table}={{"{key}": ...}}'


def find_table(key: str) -> str:
    """Return the table, `train` or `method`, in which a method's setting belongs. The other table
    takes it, too.
    """
    return "train" if key in Recipe.__dataclass_fields__ else "method"


def read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError as error:
        raise ConfigError(
            f"configuration {file}: no such file; create one with: coordinator init --out {file}"
        ) from error
    except OSError as error:
        raise ConfigError(f"configuration {file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"configuration {file}: invalid TOML: expected text in UTF-8, found a byte of another "
            f"encoding at byte {error.start}"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration {file}: invalid TOML: {error}") from error


def parse_value(text: str, source: str) -> Any:
    """Return the value of a text in TOML; the text itself if it is a word. Raises ConfigError for a
    malformed list or table. source: of the text, for the error.
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        if not text.lstrip().startswith(("[", "{")):
            return text
        raise ConfigError(
            f'{source}: expected a list such as ["a", "b"] or a table such as {{a = "b"}}, with '
            f"texts in quotes, found '{text}'"
        ) from error


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and not prefix:
            yield from flatten(value, f"{key}.")
        else:
            yield prefix + key, value


def set_key(tree: dict[str, Any], key: str, value: Any, source: str) -> None:
    """Set a key, such as `fleet.deadline`, in nested tables. Raises SettingError."""
    table, dot, rest = key.partition(".")
    if table not in Config.__struct_fields__:
        unknown = Unknown("key", table, Config.__struct_fields__)
        if source:
            raise SettingError(source, key, f"{unknown}{suggest_place(table)}")
        error = SettingError(source, key, f"{unknown}{suggest_place(table, spell_argument)}")
        error.on_command_line = f"{unknown}{suggest_place(table)}"
        raise error
    if not dot:
        tree[table] = value
        return
    inner = tree.setdefault(table, {})
    if not isinstance(inner, dict):
        raise SettingError(source, key, f"{key}: '{table}' is a value, not a table")
    tree[table] = {**inner, rest: value}
    # a setting in both `method` and `train`: the later one overrides the earlier
    if (other := TWINS.get(table)) and rest != "name":
        tree[other] = {name: old for name, old in tree.get(other, {}).items() if name != rest}
