"""The tables of a run's configuration: each a frozen record, which says what its keys mean, what
they may be and what they are unless said.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

__all__ = [
    "Assign",
    "Broker",
    "Data",
    "Evaluate",
    "Fleet",
    "Journal",
    "Log",
    "Metrics",
    "Model",
    "Positive",
    "Private",
    "Robust",
    "Seed",
    "Simulate",
    "Wire",
]

Positive = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Seed = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """name: as `--model` takes it. init: a checkpoint to start from, as `models.pretrained.load`
    takes it; empty: from the seed.
    """

    name: str = "preresnet"
    init: str = ""


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """name: a data set, a file, module:function, or `agents` for a coordinator that holds none.
    root: where named ones lie.
    """

    name: str = "digits"
    root: str | None = None


class Simulate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What only a simulation needs to be told: a fleet in the field brings its own devices and
    data.

    agents: how many devices, called d0, d1, ... (with leading zeros where there are more than ten).
    partition: how the training examples are shared out among them, as `edge-agent join --partition`
    takes it. held: share of each device's examples that it holds out. speeds: relative speeds of
    the devices, in equal shares of them, in order; assignment follows unless `assign.submodels`
    pins it. delays: least seconds of a device's training, in equal shares of them, in order, as if
    slow ones took them; none: as long as it takes here. seeds: one run each, of everything that is
    random; none: the run's own. device: cpu or cuda.
    workers: processes that train; 0: one per processor, with cuda 4 at most.
    target: accuracy of the largest submodel up to which TMAC counts rounds (see
    `federated.engine.accounting`). Unlike `target_accuracy`, which counts where this is 0, it does
    not end the run.
    """

    agents: Positive = 10
    partition: str = "dirichlet:1.0"
    held: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.2
    speeds: tuple[Annotated[float, msgspec.Meta(gt=0)], ...] = (1.0,)
    delays: tuple[Seconds, ...] = ()
    seeds: tuple[Seed, ...] = ()
    device: Literal["cpu", "cuda"] = "cpu"
    workers: Annotated[int, msgspec.Meta(ge=0)] = 0
    target: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0


class Fleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """min_agents: how many to wait for. fraction: of them, needed each round. over: of the needed,
    how many more are asked, in case some fail.

    quorum: share of the needed whose updates close a round.
    select: which agents take part at all, as `coordinator.assign.constraints` reads it; empty: all.
    deadline: seconds of a round; 0 lets the fleet's own measurements decide. wait: seconds without
    enough
    agents, or without one that can train, before giving up; 0: never.
    late: what becomes of an update whose round is closed: it is dropped, or folded into a later
    round by its age (`federated.engine.buffered`). mode: sync, in rounds that wait for their
    agents; buffered, where each trains at its own pace and a round is closed by any `buffer`
    updates (0: half as many as train). staleness: rounds that an update may be late, where late
    ones count.
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
    """submodels: agent -> submodel name, pinned whatever was measured; `*`, `?` and `[0-4]` stand
    for many agents, and the first that fits counts.

    slack: how much longer than the pace a device may take.

    memory: share of the measured memory that training may fill.
    """

    submodels: dict[str, str] = {}
    slack: Annotated[float, msgspec.Meta(ge=1)] = 1.15
    memory: Share = 0.6


class Robust(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What protects the model from devices that send what they like.

    bound: an update that moves further than this many times the median of its submodel's in earlier
    rounds, or of all submodels' where that is larger, is refused; 0: however far. Far above 1: a
    device that hardly moved any more moves far when its data change.
    rule: how updates are combined: a key of `federated.engine.robust.catalogue.RULES`, a rule of an
    installed package, or module:attribute; none: as the method does it.
    byzantine: how many liars the rule has to withstand in a round.
    clip: the norm to which a rule that clips shortens an update; 0: the median of the submodel's in
    earlier rounds.
    """

    bound: Annotated[float, msgspec.Meta(ge=0)] = 100.0
    rule: str = "none"
    byzantine: Annotated[int, msgspec.Meta(ge=0)] = 1
    clip: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Private(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What protects devices from those who see the model, as `federated.engine.private` has it;
    none without noise.

    noise: standard deviation of the noise on a round's sum, times `clip`. clip: L2 norm to which
    the change of one update is shortened. delta: at which epsilon is told. epsilon: no further
    round where it would exceed this; 0: it is told alone.
    uncovered: what may go from devices into what others see without noise all the same: scores (of
    what devices hold out), statistics (of batch norm, where the fleet measures them), moments (mean
    and deviation of data at the devices, by which inputs are scaled).
    """

    noise: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    clip: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    delta: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 1e-5
    epsilon: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    uncovered: tuple[Literal["moments", "scores", "statistics"], ...] = ()


class Evaluate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """every: rounds between evaluations of all submodels. between: whether in between those in use
    and the largest are evaluated.

    calibrate: whose data give the batch norm statistics. agents: how many agents calibrate and
    evaluate one submodel; 0: all that can. examples: at most so many of the coordinator's held-out
    examples are looked at, spread evenly; 0: all.
    devices: whether devices evaluate on what they hold out. local: whether they also do so before
    and after each local training. per_class: whether their scores come with sums per class
    (macro-F1), which tell how often each class occurs among their examples.
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
    """url: of an existing broker; without it one is started. listen, port, passwords, kind: of that
    one; no port: 1883, or 8883 with tls.

    tls: only devices that were enrolled may take part; pki: the folder of the authority that says
    so, empty for this user's own. hosts: names and addresses by which devices reach the broker,
    beside this machine's own. enrol: the port where they enrol.
    """

    url: str | None = None
    listen: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    passwords: str | None = None
    kind: Literal["auto", "mosquitto", "embedded"] = "auto"
    tls: bool = False
    pki: str = ""
    hosts: tuple[str, ...] = ()
    enrol: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8884


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """chunk: bytes of a chunk; 0: what the broker lets through. slots: updates that are received at
    the same time.
    """

    chunk: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 0
    slots: Positive = 8


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """format: of what goes to standard error and to `file`, a file that rotates. The run's own
    events are in its folder whatever this says.
    """

    format: Literal["text", "json"] = "text"
    file: str = ""


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """listen: HOST:PORT where Prometheus may ask; empty: nowhere. Beyond loopback only with all of
    the rest.

    certificate, key: files of this server's; ca: file of the authority whose certificates askers
    must have.
    """

    listen: str = ""
    certificate: str = ""
    key: str = ""
    ca: str = ""


class Journal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """every: updates folded between two snapshots of the total; 0: none before the round is over.
    waiting: updates that wait for those of earlier names, whose order makes a run repeat bit for
    bit, before they are folded as they came; 0: any number. The spool holds no more than both.

    Where the disk holds fewer, whatever came is folded and a snapshot made as soon as an update
    finds no room; some room stays free for that.
    """

    every: Annotated[int, msgspec.Meta(ge=0)] = 32
    waiting: Annotated[int, msgspec.Meta(ge=0)] = 256
