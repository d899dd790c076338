"""Records of one piece of work on one device: its task, the recipe to train, the update that
results, and the device's profile. Torch-free.

A `Task` names a submodel, the digest of its weights and a `Recipe`; an `Update` contains the
result. A task may also calibrate batch norm statistics, or evaluate.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from federated.wire.field_types import AgentName, Amount, Digest, Name, Natural, Text, Word
from models.submodel import Submodel, Target

__all__ = [
    "HEARTBEAT",
    "LABELS",
    "LONGEST",
    "MAX_CAPABILITIES",
    "MAX_CODECS",
    "MAX_GRAPH",
    "MOST_WATTS",
    "SHORTEST",
    "Augmentation",
    "Board",
    "Card",
    "Graph",
    "GraphKind",
    "Key",
    "Optimiser",
    "Profile",
    "Recipe",
    "Task",
    "Timing",
    "Update",
    "Watts",
    "Work",
    "count_parts",
    "heartbeat_interval",
    "heartbeat_pause",
    "is_heartbeat_due",
]

# seconds between an agent's heartbeats, and the shortest such interval; after three missed ones the
# coordinator considers the agent lost
HEARTBEAT, QUICKEST = 15.0, 3.0

LABELS = 16  # largest number of labels of a device
MAX_CODECS = 32  # largest number of codecs that a profile lists
MAX_CAPABILITIES = 128  # largest number of capabilities that a profile lists

# bytes of a training graph, which holds no weights
MAX_GRAPH = 1 << 24

# seconds of a step: no machine is beyond these limits, and predictions from such values overflow
SHORTEST, LONGEST = 1e-12, 1e9

MOST_WATTS = 1e5  # no machine that trains uses more
Watts = Annotated[float, Meta(ge=0, le=MOST_WATTS)]
Work = Literal["train", "calibrate", "evaluate"]
Optimiser = Literal["sgd", "adam", "adamw"]
GraphKind = Literal["step", "calibration", "evaluation"]
Augmentation = Literal["crop", "flip", "cutout"]


@dataclass(frozen=True)
class Recipe:
    """The training of a device as data, for a PyTorch loop or an exported graph. The defaults
    describe a training that every trainer supports; they are also those of FedAvg's settings.

    epochs: passes over the local training data.
    portion: fraction of these data that a round trains on: one of `count_parts` equal parts, the
        next in each round, and the first again after the last; 1: all.
    steps: maximum number of optimiser steps; 0: all steps of the epochs.
    batch: examples per step; the last step of an epoch may have fewer.
    optimiser: "sgd", "adam" or "adamw"; only SGD uses momentum.
    keep_optimiser: the device keeps the state of its optimiser (momentum, or the moments of Adam)
        between rounds, for every coordinate that it ever trained; otherwise each round resets it.
    lr: learning rate.
    momentum: of SGD.
    decay: weight decay of the optimiser.
    clip: largest L2 norm of the whole gradient; 0: no clipping.
    masked: set the logits of classes that the device does not hold to 0 before cross-entropy
        (HeteroFL, section 3).
    labels: send the classes (or tokens) that the device holds.
    norm: "static" trains batch norm with batch statistics and sends none (the fleet calibrates them
        later); "tracked" sends running statistics like weights.
    hide: fraction of the tokens that are hidden from a masked network.
    augment: random changes to the images of each step (see `federated.training.objective.augment`).
    scores: also evaluate on the device's held-out examples before and after training.
    per_class: send scores with sums per class, which reveal how often each class occurs among the
        held-out examples.
    pull: weight of pull/2 * ||w - w_received||^2 in the loss, over parameters (FedProx's mu,
        FedDyn's alpha).
    variate: "scaffold" subtracts lr * (c - c_i) from the weights after each step. c is received as
        `c/NAME`; c_i is 0 at first and kept by the device. K steps change it by
        (w_received - w) / (K * lr) - c, which is sent as `c/NAME`. "feddyn" subtracts c_i from each
        gradient, and changes it by pull * (w_received - w). Nothing is sent.
    apart: average variates only over devices with the same submodel, so the device keeps a c_i for
        each submodel.
    keep: names of tensors that stay on the device between rounds, neither received nor sent.
    frozen: names of parameters that training does not change.
    hook: the method whose `Hooks` the device runs; "": none.
    options: plain values for the hooks.
    feedback: the submodel has the same weights of the network in every round, so the device may add
        to its update what the codec left out of its last one.
    seed: of the order of examples. PyTorch's trainer combines it with round and agent: the first 8
        bytes of sha256("SEED/ROUND/AGENT"), big-endian, shifted right by one bit.
    """

    epochs: int = 1
    portion: float = 1.0
    steps: int = 0
    batch: int = 32
    optimiser: Optimiser = "sgd"
    keep_optimiser: bool = False
    lr: float = 0.05
    momentum: float = 0.9
    decay: float = 0.0
    clip: float = 0.0
    masked: bool = False
    labels: bool = False
    norm: Literal["static", "tracked"] = "static"
    hide: float = 0.15
    augment: tuple[Augmentation, ...] = ()
    scores: bool = False
    per_class: bool = False
    pull: float = 0.0
    variate: Literal["", "feddyn", "scaffold"] = ""
    apart: bool = False
    keep: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    hook: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    feedback: bool = True
    seed: int = 0


def count_parts(portion: float) -> int:
    """Return the number of equal parts of a device's data, of which a round trains on one."""
    return max(1, math.floor(1 / portion + 1e-9))


class Key(NamedTuple):
    """The identity of a task, which yields one update. Keys sort in the order of folding.
    submodel: its name.
    """

    agent: str
    submodel: str
    round: int
    work: Work


@dataclass(frozen=True)
class Graph:
    """A training graph in ONNX, see `federated.device.trainers.graph_names`.

    kind: what it computes: a training step, batch norm statistics, or the network's outputs.
    digest: sha256 of its file, hexadecimal; it is published at `model/graph/DIGEST`.
    size: bytes of its file.
    """

    kind: GraphKind
    digest: Digest
    size: Natural


@dataclass(frozen=True)
class Task:
    """One piece of work for one agent.

    run: name of the run.
    round: its number.
    attempt: number of the coordinator's process in this run; part of the transfer's name.
    agent: its name.
    work: train, measure batch norm statistics (calibrate), or score held-out examples (evaluate).
    submodel: the network to build.
    version: names the weights: the round that made them, and what was added or left out.
    digest: sha256 of the encoded weights, hexadecimal.
    size: bytes of the encoded weights.
    recipe: how to train; calibrate and evaluate read its `batch`, `hide`, `per_class` and `seed`.
    deadline: seconds from receipt after which the update is discarded.
    since: the last round in which the coordinator accepted an update of this agent, 0 if none; the
        device restores its memory of that round.
    lease: seconds after which the coordinator asks another agent, unless heartbeats show progress;
        0: never.
    slot: topic level that the weights are published under.
    codec: name of the codec for the tensors of the update.
    weights_codec: name of the codec of the weights, which the profile lists.
    raw_size: bytes of the weights without a codec; 0: `size`.
    graphs: the training graphs that the work needs, of the submodel without its owner; empty for a
        trainer without the capability `graphs`.
    """

    run: Name
    round: Natural
    attempt: Natural
    agent: AgentName
    work: Work
    submodel: Submodel
    version: Name
    digest: Digest
    size: Natural
    recipe: Recipe
    deadline: Annotated[float, Meta(gt=0, le=sys.float_info.max)]
    since: int = 0
    lease: float = 0.0
    slot: Name = "0"
    codec: Word = "raw"
    weights_codec: Word = "raw"
    raw_size: Natural = 0
    graphs: Annotated[tuple[Graph, ...], Meta(max_length=3)] = ()

    @cached_property
    def key(self) -> Key:
        return Key(self.agent, self.submodel.name, self.round, self.work)

    @property
    def decoded_size(self) -> int:
        """Bytes of the weights without a codec."""
        return self.raw_size or self.size

    @cached_property
    def transfer(self) -> str:
        """Name of the transfer of its update, the same for every offer."""
        return f"{self.round}-{self.attempt}-{self.work}-{self.submodel.name}".replace("@", "_")


@dataclass(frozen=True)
class Update:
    """The contribution of one device.

    run, round, attempt, agent, work, submodel, version: as in the task.
    samples: number of examples trained on, calibrated on or evaluated.
    steps: number of optimiser steps; 0 without training.
    tensors: name -> array; empty in the header of an encoded update, whose blob holds them.
    notes: plain values: loss, labels (classes held), batches, tallies (sums of scores) by view; for
        a measured training also seconds (in all), step (mean seconds) and peak (bytes beyond the
        process itself).
    """

    run: str
    round: int
    attempt: int
    agent: str
    work: Work
    submodel: Submodel
    version: str
    samples: int
    steps: int
    tensors: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Card:
    """The description of a device's data or of a data set: sizes and moments, but no example.

    name: name of the data set.
    inputs: shape of one raw example.
    dtype: of the raw examples, as numpy names it.
    outputs: number of classes, of regression values, or of tokens in the vocabulary (see `target`).
    examples: number of training examples.
    held_out: number of held-out examples.
    mean: per channel, in raw units; [0] for texts.
    std: standard deviation per channel, in raw units; [1] for texts.
    target: what an example is labelled with.
    shift: mean of each value over the training examples; empty for classes and tokens.
    scale: standard deviation of each value over the training examples; empty for classes and
        tokens.
    vocabulary: number of tokens that an example may contain, if it is a text with a class or with
        values; 0 for other examples.
    tokenizer: name or digest of the tokenizer that made these tokens; empty: unknown.
    """

    name: Text
    inputs: tuple[int, ...]
    dtype: Word
    outputs: int
    examples: int
    held_out: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    target: Target = "class"
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    vocabulary: Natural = 0
    tokenizer: Word = ""


@dataclass(frozen=True)
class Timing:
    """One measurement: the fastest training step (forward, backward, update) of a submodel at a
    batch size.

    submodel: one of the card's `calibration`.
    batch: the card's `batch`.
    seconds: duration of the step, from 1e-12 to 1e9.
    """

    submodel: Submodel
    batch: int
    seconds: Amount


@dataclass(frozen=True)
class Board:
    """A device's hardware.

    kind: `pi`, `jetson`, `android` or `generic`.
    model: name of the board.
    gpu: name of the GPU; empty without one.
    shared: whether GPU and CPU share one memory.
    power: `mains`, `battery`, or empty if unknown.
    """

    kind: Word = "generic"
    model: Text = ""
    gpu: Text = ""
    shared: bool = False
    power: Word = ""


@dataclass(frozen=True)
class Profile:
    """An agent's measurements of its device at join.

    agent: name of the agent.
    host: name of the machine.
    system: its operating system.
    cpus: number of CPUs that it may use, possibly a fraction.
    memory: bytes that training may use beyond the process itself.
    uplink: bytes per second, measured by publishing one chunk; 0: unknown, otherwise at least 1.
    chunk: largest payload that the broker accepted, bytes.
    runtime: name and version of the trainer.
    data: description of the local data.
    timings: of the submodels in the card's `calibration`, in their order, without those that do not
        fit into memory; at least one, or empty as long as the card's `network` is nil, or with the
        capability `graphs`.
    survey: result of a method's survey hook; in msgpack at most 1,024 bytes, 16 per output of the
        network, and 144 per submodel of the card's `menu`. Empty without such a hook.
    board: the hardware.
    labels: labels that the owner gave the device (`--label eu`).
    codecs: names of the codecs with which it can encode updates.
    weights_codecs: names of the codecs with which it can decode weights.
    capabilities: names of the capabilities of its trainer.
    watts: mean power while it trains, of the machine or, where only processors have counters, of
        these; 0: unknown.
    devices: number of devices whose updates a gateway combines; 0: it is a device itself.
    protocol: the highest version of the protocol that the agent speaks.
    software: name and version of the agent's program; empty: unknown.
    """

    agent: AgentName
    host: Text
    system: Text
    cpus: Amount
    memory: Natural
    uplink: Amount
    chunk: Natural
    runtime: Text
    data: Card
    timings: tuple[Timing, ...]
    survey: Mapping[str, Any] = field(default_factory=dict)
    board: Board = field(default_factory=Board)
    labels: Annotated[tuple[Word, ...], Meta(max_length=LABELS)] = ()
    codecs: Annotated[tuple[Word, ...], Meta(max_length=MAX_CODECS)] = ("raw",)
    weights_codecs: Annotated[tuple[Word, ...], Meta(max_length=MAX_CODECS)] = ("raw",)
    capabilities: Annotated[tuple[Word, ...], Meta(max_length=MAX_CAPABILITIES)] = ()
    watts: Watts = 0.0
    devices: Natural = 0
    protocol: Natural = 3  # the last version whose agents did not state it
    software: Text = ""


def heartbeat_interval(lease: float, least: float = 0.0) -> float:
    """Return the seconds between heartbeats during a task with this lease: several per lease,
    unless it is very short. least: of the run (see `Run.heartbeat`).
    """
    return max(least, min(HEARTBEAT, max(QUICKEST, lease / 5)) if lease else HEARTBEAT)


def is_heartbeat_due(name: str, last: float, now: float, interval: float) -> bool:
    """Return whether an agent whose activity did not change sends a heartbeat: once in each
    interval, at an instant that depends on its name. Otherwise all agents that a coordinator or a
    round started together would go on to send theirs together, and a broker with a limit of
    messages per second would drop many. last: time of the last heartbeat.
    """
    phase = zlib.crc32(name.encode()) / 2**32
    return math.floor(now / interval - phase) > math.floor(last / interval - phase)


def heartbeat_pause(least: float) -> float:
    """Return the seconds after a heartbeat in which an agent does not report that its activity
    changed. least: as above.
    """
    return least / 5
