"""What a coordinator asks of a device and what comes back: torch-free records.

A `Task` names a submodel, the weights to start from (by digest) and a `Recipe`; an `Update` holds
what the
device learned. A task may ask for no steps: to calibrate batch norm statistics, or to evaluate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from federated.wire.fields import Text, Word
from models.submodel import Submodel, Target

__all__ = [
    "CAPABILITIES",
    "CODECS",
    "HEARTBEAT",
    "LABELS",
    "LONGEST",
    "SHORTEST",
    "Board",
    "Card",
    "Key",
    "Profile",
    "Recipe",
    "Task",
    "Timing",
    "Update",
    "Work",
    "beats",
]

# seconds between heartbeats of an agent, of which the coordinator counts three missed ones as
# death; and the fewest
HEARTBEAT, QUICKEST = 15.0, 3.0

LABELS = 16  # words that an owner may label a device with
CODECS = 32  # that a device may name
CAPABILITIES = 128  # that a device may name

# seconds: no machine's step is beyond them, and what is predicted from one would leave what floats
# can hold
SHORTEST, LONGEST = 1e-12, 1e9

Work = Literal["train", "calibrate", "evaluate"]


@dataclass(frozen=True)
class Recipe:
    """How a device trains, as data, so that a PyTorch loop and an exported graph can both follow
    it.

    epochs: passes over the local training data.
    steps: at most so many steps, of fewer passes then; 0: as many as the passes have.
    batch: examples per step.
    optimiser: "sgd", "adam" or "adamw" (momentum is SGD's alone).
    lr, momentum, decay: of the optimiser; its state is made anew each round.
    clip: largest L2 norm of the whole gradient; 0 leaves it as it is.
    masked: set the logits of classes that the device does not hold to 0 before cross-entropy
    (HeteroFL, section 3).
    labels: the update says which classes (or tokens) the device holds.
    norm: "static" trains batch norm on batch statistics and sends none (calibrated by the fleet
    later);
        "tracked" sends running statistics like weights.
    hide: share of the tokens that a masked network is not shown.
    scores: evaluate on the device's held-out examples before and after training as well.
    per_class: scores are sent with their sums per class, which tell how often each class occurs
    among the held-out examples.
    pull: weight of pull/2 * ||w - w_received||^2 in the loss, over parameters (FedProx's mu,
    FedDyn's alpha).
    variate: "scaffold" adds c - c_i to each step, c received as `c/NAME`, c_i kept by the device,
    and sends the change of c_i as `c/NAME`;
        "feddyn" subtracts what the device kept of its last gradient (see
        `federated.training.variates`).
    apart: only devices of the same submodel share a mean, so the device keeps a c_i for each
    submodel.
    keep: tensors, by name, that stay on the device: neither received nor sent, and found again in
    the next round.
    frozen: parameters, by name, that training leaves as they were received.
    hook: the method whose `Hooks` the device runs; "": none. options: plain values for them.
    seed: of the order of examples; mixed with round and agent.
    """

    epochs: int = 1
    steps: int = 0
    batch: int = 32
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    decay: float = 0.0
    clip: float = 0.0
    masked: bool = False
    labels: bool = False
    norm: Literal["static", "tracked"] = "static"
    hide: float = 0.15
    scores: bool = False
    per_class: bool = False
    pull: float = 0.0
    variate: Literal["", "feddyn", "scaffold"] = ""
    apart: bool = False
    keep: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    hook: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


class Key(NamedTuple):
    """Names a task, of which one update is expected. Keys sort in the order of folding. submodel:
    its name.
    """

    agent: str
    submodel: str
    round: int
    work: Work


@dataclass(frozen=True)
class Task:
    """One piece of work for one agent.

    attempt: the coordinator's session; it only names the transfer. At most one update per (run,
    round, agent, work, submodel) is folded. version: names the weights: the round that made them,
    and what was added or left out.
    digest: sha256 of the encoded weights, hexadecimal; size: their bytes.
    deadline: seconds from receipt after which the update is no longer wanted.
    since: the last round of which the coordinator took an update of this agent, 0 if none: what the
    device kept then is what it goes on with. lease: seconds after which the coordinator asks
    another agent, unless heartbeats show that something goes on; 0: it never does. slot: the topic
    level that the weights are published under (`topics.model`).
    codec: by which the tensors of the update are encoded (`federated.wire.codecs`).
    """

    run: str
    round: int
    attempt: int
    agent: str
    work: Work
    submodel: Submodel
    version: str
    digest: str
    size: int
    recipe: Recipe
    deadline: float
    since: int = 0
    lease: float = 0.0
    slot: str = "0"
    codec: Word = "raw"

    @property
    def key(self) -> Key:
        return Key(self.agent, self.submodel.name, self.round, self.work)

    @property
    def transfer(self) -> str:
        """The name of the transfer of its update, which is the same each time the update is
        offered.
        """
        return f"{self.round}-{self.attempt}-{self.work}-{self.submodel.name}".replace("@", "_")


@dataclass(frozen=True)
class Update:
    """What one device contributes.

    samples: examples trained on, calibrated on or evaluated; steps: optimiser steps taken. tensors:
    local name -> array (numpy on the wire, torch tensors in methods, over the same memory).
    notes: plain values: labels (classes held), batches, loss, tallies (see
    `federated.engine.tallies`) by view; of a training that was measured
        also seconds (all of it), step (mean of its steps, seconds) and peak (bytes beyond the
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
    """What a device says of its data, and a data set of itself: no example, only sizes and the
    moments of each channel.

    inputs: shape of one raw example; dtype: of the raw examples, as numpy names it.
    outputs: number of classes, of values, or of tokens in the vocabulary, as `target` says.
    examples, held_out: to train on and to evaluate on. mean, std: per channel, in raw units; of
    tokens 0 and 1.
    shift, scale: mean and standard deviation of each value over the training part; empty for
    classes and tokens.
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


@dataclass(frozen=True)
class Timing:
    """One measurement: the fastest training step (forward, backward, update) of a submodel at a
    batch size, in seconds.
    """

    submodel: Submodel
    batch: int
    seconds: float


@dataclass(frozen=True)
class Board:
    """What a device is. kind: `pi`, `jetson`, `android` or `generic`; model: as the board names
    itself.

    gpu: its name, empty without one; shared: whether GPU and CPU have one memory. power: `mains`,
    `battery`, or empty where nothing says.
    """

    kind: Word = "generic"
    model: Text = ""
    gpu: Text = ""
    shared: bool = False
    power: Word = ""


@dataclass(frozen=True)
class Profile:
    """What an agent measured of itself at join.

    cpus: processors it may use, fractions allowed; memory: bytes that training may take beyond the
    process itself.
    uplink: bytes per second, measured by a publish of one chunk. chunk: largest payload that
    passed, bytes.
    runtime: name and version of what trains. survey: what a method's survey hook found, at most
        the `survey_limit` of the run's card (`federated.wire.messages`). labels: what its owner
        calls it (`--label eu`).
    codecs: the names of those that it can encode updates by. capabilities: what its trainer
        supports of `federated.capabilities`.
    """

    agent: str
    host: Text
    system: Text
    cpus: float
    memory: int
    uplink: float
    chunk: int
    runtime: Text
    data: Card
    timings: tuple[Timing, ...]
    survey: Mapping[str, Any] = field(default_factory=dict)
    board: Board = field(default_factory=Board)
    labels: Annotated[tuple[Word, ...], Meta(max_length=LABELS)] = ()
    codecs: Annotated[tuple[Word, ...], Meta(max_length=CODECS)] = ("raw",)
    capabilities: Annotated[tuple[Word, ...], Meta(max_length=CAPABILITIES)] = ()


def beats(lease: float) -> float:
    """Seconds between heartbeats while there is a task of such a lease: several within it, but for
    the shortest.
    """
    return min(HEARTBEAT, max(QUICKEST, lease / 5)) if lease else HEARTBEAT
