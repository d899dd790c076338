"""A run's configuration: a TOML file, the environment and flags, in that order, into one frozen record.

[fleet]                     ESPALIER_FLEET__MIN_AGENTS=4        --set fleet.min_agents=4
min_agents = 4
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec

from federated.errors import ConfigError, Unknown
from federated.methods.catalogue import METHODS
from federated.task import Recipe

__all__ = [
    "Assign",
    "Broker",
    "Config",
    "Data",
    "Evaluate",
    "Fleet",
    "Log",
    "Metrics",
    "Model",
    "Private",
    "Robust",
    "Simulate",
    "load",
    "parse_setting",
    "to_json",
]

PREFIX = "ESPALIER_"
Positive = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Seed = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """name: as `--model` takes it. init: a checkpoint to start from, as `models.pretrained.load` takes it; empty: from the seed."""

    name: str = "preresnet"
    init: str = ""


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """name: a data set, a file, module:function, or `agents` for a coordinator that holds none. root: where named ones lie."""

    name: str = "digits"
    root: str | None = None


class Simulate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What only a simulation needs to be told: a fleet in the field brings its own devices and data.

    agents: how many devices, called d0, d1, ... (with leading zeros where there are more than ten). partition: how the training examples are
    shared out among them, as `edge-agent join --partition` takes it. held: share of each device's examples that it holds out.
    speeds: relative speeds of the devices, in equal shares of them, in order; assignment follows unless `assign.submodels` pins it.
    delays: least seconds of a device's training, in equal shares of them, in order, as if slow ones took them; none: as long as it takes here.
    seeds: one run each, of everything that is random; none: the run's own. device: cpu or cuda. workers: processes that train; 0: one per processor.
    """

    agents: Positive = 10
    partition: str = "dirichlet:1.0"
    held: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.2
    speeds: tuple[Annotated[float, msgspec.Meta(gt=0)], ...] = (1.0,)
    delays: tuple[Seconds, ...] = ()
    seeds: tuple[Seed, ...] = ()
    device: Literal["cpu", "cuda"] = "cpu"
    workers: Annotated[int, msgspec.Meta(ge=0)] = 0


class Fleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """min_agents: how many to wait for. fraction: of them, needed each round. over: of the needed, how many more are asked, in case some fail.

    quorum: share of the needed whose updates close a round.
    select: which agents take part at all, as `coordinator.constraints` reads it; empty: all.
    deadline: seconds of a round; 0 lets the fleet's own measurements decide. wait: seconds without enough agents before giving up; 0: never.
    late: what becomes of an update whose round is closed: it is dropped, or folded into a later round by its age (`federated.buffered`).
    mode: sync, in rounds that wait for their agents; buffered, where each trains at its own pace and a round is closed by any `buffer` updates
    (0: half as many as train). staleness: rounds that an update may be late, where late ones count.
    """

    min_agents: Positive = 2
    fraction: Share = 1.0
    quorum: Share = 1.0
    select: str = ""
    deadline: Seconds = 0.0
    wait: Seconds = 0.0
    over: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    late: Literal["drop", "take"] = "drop"
    mode: Literal["sync", "buffered"] = "sync"
    buffer: Annotated[int, msgspec.Meta(ge=0)] = 0
    staleness: Positive = 10


class Assign(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """submodels: agent -> submodel name, pinned whatever was measured; `*`, `?` and `[0-4]` stand for many agents, and the first that fits counts.

    slack: how much longer than the pace a device may take.

    memory: share of the measured memory that training may fill.
    """

    submodels: dict[str, str] = {}
    slack: Annotated[float, msgspec.Meta(ge=1)] = 1.15
    memory: Share = 0.6


class Robust(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What protects the model from devices that send what they like.

    bound: an update that moves further than this many times the median of its submodel's in earlier rounds, or of all submodels' where that is
    larger, is refused; 0: however far. Far above 1: a device that hardly moved any more moves far when its data change.
    rule: how updates are combined, as `federated.robust` has it; none: as the method says; clip: so, each shortened to a norm.
    byzantine: how many liars the rule is to outlive in a round. clip: that norm; 0: the median of the submodel's in earlier rounds.
    """

    bound: Annotated[float, msgspec.Meta(ge=0)] = 100.0
    rule: Literal["none", "clip", "trimmed", "median", "krum", "multikrum"] = "none"
    byzantine: Annotated[int, msgspec.Meta(ge=0)] = 1
    clip: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Private(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What protects devices from those who see the model, as `federated.private` has it; none without noise.

    noise: standard deviation of the noise on a round's sum, times `clip`. clip: L2 norm to which the change of one update is shortened.
    delta: at which epsilon is told. epsilon: no further round where it would exceed this; 0: it is told alone.
    uncovered: what may go from devices into what others see without noise all the same: scores (of what devices hold out), statistics (of batch norm,
    where the fleet measures them), moments (mean and deviation of data at the devices, by which inputs are scaled).
    """

    noise: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    clip: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    delta: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 1e-5
    epsilon: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    uncovered: tuple[Literal["moments", "scores", "statistics"], ...] = ()


class Evaluate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """every: rounds between evaluations of all submodels. between: whether in between those in use and the largest are evaluated.

    calibrate: whose data give the batch norm statistics. agents: how many agents calibrate and evaluate one submodel; 0: all that can.
    examples: at most so many of the coordinator's held-out examples are looked at, spread evenly; 0: all.
    devices: whether devices evaluate on what they hold out. local: whether they also do so before and after each local training.
    per_class: whether their scores come with sums per class (macro-F1), which tell how often each class occurs among their examples.
    """

    every: Positive = 5
    between: bool = True
    devices: bool = True
    local: bool = False
    per_class: bool = False
    calibrate: Literal["fleet", "selected", "coordinator"] = "fleet"
    agents: Annotated[int, msgspec.Meta(ge=0)] = 0
    examples: Annotated[int, msgspec.Meta(ge=0)] = 0


class Broker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """url: of an existing broker; without it one is started. listen, port, passwords, kind: of that one; no port: 1883, or 8883 with tls.

    tls: only devices that were enrolled may take part; pki: the folder of the authority that says so, empty for this user's own. hosts: names
    and addresses by which devices reach the broker, beside this machine's own. enrol: the port where they enrol.
    """

    url: str | None = None
    listen: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    passwords: str | None = None
    kind: Literal["auto", "mosquitto", "amqtt"] = "auto"
    tls: bool = False
    pki: str = ""
    hosts: tuple[str, ...] = ()
    enrol: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8884


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """chunk: bytes of a chunk; 0: what the broker lets through. slots: updates that are received at the same time."""

    chunk: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 0
    slots: Positive = 8


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """format: of what goes to standard error and to `file`, a file that rotates. The run's own events are in its folder whatever this says."""

    format: Literal["text", "json"] = "text"
    file: str = ""


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """listen: HOST:PORT where Prometheus may ask; empty: nowhere. Beyond loopback only with all of the rest.

    certificate, key: files of this server's; ca: file of the authority whose certificates askers must have.
    """

    listen: str = ""
    certificate: str = ""
    key: str = ""
    ca: str = ""


class Journal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """every: updates folded between two snapshots of the total; 0: none before the round is over. waiting: updates that wait for those of earlier
    names, whose order makes a run repeat bit for bit, before they are folded as they came; 0: any number. The spool holds no more than both.

    Where the disk holds fewer, whatever came is folded and a snapshot made as soon as an update finds no room; some room stays free for that.
    """

    every: Annotated[int, msgspec.Meta(ge=0)] = 32
    waiting: Annotated[int, msgspec.Meta(ge=0)] = 256


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides a run. train, method: the method's settings, in either table; unnamed ones are its own."""

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
        """What the file says to the method: its own keys and those of its recipe, as one flat mapping."""
        return {**self.train, **{key: value for key, value in self.method.items() if key != "name"}}


SAME = {"train": "method", "method": "train"}
VALUES = {name for name in Config.__struct_fields__ if isinstance(getattr(Config(), name), int | float | str)}  # keys that are no tables


def load(file: Path | None, environment: Mapping[str, str], settings: Iterable[tuple[str, Any]], base: Mapping[str, Any] | None = None) -> Config:
    """The record of `base`, a TOML file, the environment and settings, the later over the earlier. Raises ConfigError that names the key."""
    tree: dict[str, Any] = dict(base or {})
    if file is not None:
        for key, value in _flatten(_read(file)):
            _put(tree, key, value, where=str(file))
    for name, text in sorted(environment.items()):
        key = name.removeprefix(PREFIX).lower().replace("__", ".")
        if name.startswith(PREFIX) and (key in VALUES or ("." in key and key.partition(".")[0] in Config.__struct_fields__)):
            _put(tree, key, _value(text), where=name)
    for key, value in settings:
        _put(tree, key, value, where="--set " + key)
    try:
        return msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"configuration{f' {file}' if file else ''}: {_explained(str(error), tree)}") from error


def parse_setting(text: str) -> tuple[str, Any]:
    """`train.lr=0.05` as a key and a value: TOML where it is TOML, else the text itself. Raises ConfigError."""
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
    """A validation error in the words of whoever wrote the configuration: which key, what was expected, what was found."""
    what, _, where = error.replace("`", "").partition(" - at $.")
    path = where.rstrip(".")
    if unknown := re.fullmatch(r"Object contains unknown field (\S+)", what):
        fields = type(getattr(Config(), path)).__struct_fields__ if path in Config.__struct_fields__ else Config.__struct_fields__
        return f"{path}: {Unknown('key', unknown[1], fields)}{elsewhere(unknown[1])}"
    found: Any = tree
    for key in re.findall(r"[^.\[\]]+", path):
        found = found.get(key) if isinstance(found, Mapping) else found[int(key)] if isinstance(found, Sequence) and key.isdigit() else found
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
    """Where a key belongs that was written into another table, as the end of a message; empty where it belongs nowhere."""
    tables = [name for name in Config.__struct_fields__ if key in getattr(getattr(Config(), name), "__struct_fields__", ())]
    if any(key in made().settings for made in METHODS.values()):
        tables.append("train" if key in Recipe.__dataclass_fields__ else "method")
    places = [f"{table}.{key}" for table in tables] + ([f"{key}, above the first table"] if key in VALUES else [])
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
        raise ConfigError(f"{where}: {Unknown('key', table, Config.__struct_fields__)}{elsewhere(table)}")
    if not dot:
        tree[table] = value
        return
    inner = tree.setdefault(table, {})
    if not isinstance(inner, dict):
        raise ConfigError(f"{where}: '{table}' is a value, not a table")
    tree[table] = {**inner, rest: value}
    if (other := SAME.get(table)) and rest != "name":  # one setting in two tables: the later goes over the earlier
        tree[other] = {key: known for key, known in tree.get(other, {}).items() if key != rest}
