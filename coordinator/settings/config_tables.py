"""Define the settings of the model, the data, the fleet and the training.

Bounds, description and default of each setting are written here only. Errors, `coordinator schema`
and `coordinator init` are derived from them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from federated.defaults import DATASET, MEMORY_FRACTION, MODEL
from federated.settings_validation import Natural, Record
from federated.wire.field_types import WeightsCodec

__all__ = [
    "AGENTS",
    "Assign",
    "Data",
    "Evaluate",
    "Fleet",
    "Fraction",
    "Journal",
    "Model",
    "NotNegative",
    "Observe",
    "Positive",
    "Private",
    "Robust",
    "Wire",
]

AGENTS = "agents"  # data.name of a coordinator without data: the agents' cards describe theirs

Positive = Annotated[int, Meta(ge=1)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
NotNegative = Annotated[float, Meta(ge=0)]


class Model(Record, frozen=True):
    """The largest network."""

    name: Annotated[
        str,
        Meta(
            description="A model family such as preresnet-18, one of an installed package, "
            "torchvision:NAME, timm:NAME, hf:NAME or hf-adapters:NAME, or module:function for your "
            "own."
        ),
    ] = MODEL
    init: Annotated[
        str,
        Meta(
            description="Checkpoint to start from: RUN/round-NNNNNN.safetensors, a file of "
            "torchvision's weights, a file of the network's state dict, or torchvision:DEFAULT, "
            "timm:DEFAULT or hf:DEFAULT to download weights; empty: random weights from the seed."
        ),
    ] = ""


class Data(Record, frozen=True):
    """The coordinator's validation data."""

    name: Annotated[
        str,
        Meta(
            description="A data set by name, one of an installed package, a file, module:function, "
            "or 'agents' if the coordinator has no data."
        ),
    ] = DATASET
    root: Annotated[
        str | None, Meta(description="Folder to which named data sets are downloaded.")
    ] = None


class Fleet(Record, frozen=True):
    """Selection of agents for a round, and when the round closes."""

    min_agents: Annotated[Positive, Meta(description="Agents required to start a round.")] = 2
    fraction: Annotated[
        Fraction, Meta(description="Fraction of the agents that are sampled for a round.")
    ] = 1.0
    quorum: Annotated[
        Fraction, Meta(description="Fraction of the needed updates that closes a round.")
    ] = 1.0
    select: Annotated[
        str,
        Meta(
            description="Condition on agents that take part, such as 'memory>=2GB and label=eu', "
            "or 'group=eu' with broker.tls; empty: all agents."
        ),
    ] = ""
    deadline: Annotated[
        NotNegative,
        Meta(
            description="Seconds until a round closes; 0: derived from the fleet's measured times."
        ),
    ] = 0.0
    wait: Annotated[
        NotNegative,
        Meta(
            description="Seconds to wait for enough agents, or for one that can train, before the "
            "run ends; 0: no limit."
        ),
    ] = 0.0
    over: Annotated[
        float,
        Meta(
            ge=0,
            le=10,
            description="Additional agents that train in case some fail, as a fraction of those "
            "needed.",
        ),
    ] = 0.0
    late: Annotated[
        Literal["drop", "take"],
        Meta(
            description="What happens to an update of a closed round. drop: it is discarded. take: "
            "it is added to a later round, weighted by its age."
        ),
    ] = "drop"
    mode: Annotated[
        Literal["sync", "buffered"],
        Meta(
            description="When a round closes. sync: when its agents have answered. buffered: after "
            "a fixed number of updates; agents train without waiting for each other."
        ),
    ] = "sync"
    buffer: Annotated[
        Natural,
        Meta(
            description="Updates that close a round in buffered mode; 0: half the number of agents "
            "that train."
        ),
    ] = 0
    staleness: Annotated[
        Positive,
        Meta(description="Maximum age of a late update, in rounds; older ones are discarded."),
    ] = 10


class Assign(Record, frozen=True):
    """Assignment of submodels to agents."""

    submodels: Annotated[
        dict[str, str],
        Meta(
            description='Submodels of named agents, such as {"pi-*"="w0.5-d4.4.4"}; '
            "they override the assignment by measurements. Names may be patterns with *, ? and "
            "[0-4]; the first match counts."
        ),
    ] = field(default_factory=dict)
    slack: Annotated[
        float,
        Meta(
            ge=1,
            description="Maximum time of a device, as a multiple of the time that the fastest "
            "device needs for the largest submodel. The fastest counts as at most four times as "
            "fast as the fleet's median.",
        ),
    ] = 1.15
    memory: Annotated[
        Fraction, Meta(description="Fraction of a device's measured memory that training may use.")
    ] = MEMORY_FRACTION


class Robust(Record, frozen=True):
    """Protection of the model against faulty and malicious updates."""

    bound: Annotated[
        NotNegative,
        Meta(
            description="Reject an update whose norm exceeds this multiple of the median norm in "
            "earlier rounds: of its submodel or of all submodels, whichever is larger. 0: no "
            "bound. Use a value far above 1, since updates grow when the data of a device change."
        ),
    ] = 100.0
    examples: Annotated[
        NotNegative,
        Meta(
            description="Maximum weight of an agent in the means of updates, batch norm statistics "
            "and the devices' scores: its number of examples counts up to this multiple of the "
            "median over agents. A warning names agents with more. 0: no limit. Simulations have "
            "no limit, because their agents cannot report false numbers."
        ),
    ] = 10.0
    rule: Annotated[
        str,
        Meta(
            description="Rule that combines updates: a built-in one, one of an installed package, "
            "or module:attribute for your own. none: the method's own."
        ),
    ] = "none"
    byzantine: Annotated[
        Natural, Meta(description="Malicious agents per round that the rule must tolerate.")
    ] = 1
    clip: Annotated[
        NotNegative,
        Meta(
            description="Norm to which the rule `clip` limits an update; 0: the median norm of its "
            "submodel in earlier rounds, and at most that of all submodels if `byzantine` agents "
            "may have sent half of these."
        ),
    ] = 0.0


class Private(Record, frozen=True):
    """Differential privacy of the devices; off if noise is 0."""

    noise: Annotated[
        NotNegative,
        Meta(
            description="Standard deviation of the noise on a round's sum, as a multiple of clip."
        ),
    ] = 0.0
    clip: Annotated[NotNegative, Meta(description="L2 norm to which each update is clipped.")] = 0.0
    delta: Annotated[
        float, Meta(gt=0, lt=1, description="Delta for which epsilon is computed.")
    ] = 1e-5
    epsilon: Annotated[
        NotNegative,
        Meta(
            description="Stop before a round that would exceed this epsilon; 0: only report "
            "epsilon."
        ),
    ] = 0.0
    uncovered: Annotated[
        tuple[Literal["moments", "scores", "statistics"], ...],
        Meta(
            description="Data that devices may send without noise: moments (mean and deviation of "
            "their inputs), scores (on held-out data), statistics (of batch norm)."
        ),
    ] = ()


class Evaluate(Record, frozen=True):
    """Schedule and data of the evaluation of submodels."""

    every: Annotated[
        Positive, Meta(description="Rounds between two evaluations of all submodels.")
    ] = 5
    between: Annotated[
        bool,
        Meta(description="In all other rounds, evaluate the largest submodel and those in use."),
    ] = True
    devices: Annotated[bool, Meta(description="Evaluate on the devices' held-out data.")] = True
    local: Annotated[
        bool,
        Meta(description="Evaluate on the devices before and after each local training."),
    ] = False
    per_class: Annotated[
        bool,
        Meta(
            description="Report scores per class (for macro-F1), which reveals how often each "
            "class occurs in a device's data."
        ),
    ] = False
    calibrate: Annotated[
        Literal["fleet", "selected", "coordinator"],
        Meta(
            description="Source of the batch norm statistics: fleet (data of all agents), selected "
            "(of the round's agents) or coordinator."
        ),
    ] = "fleet"
    agents: Annotated[
        Natural, Meta(description="Agents that calibrate and evaluate each submodel; 0: all.")
    ] = 0
    examples: Annotated[
        Natural,
        Meta(description="Number of the coordinator's held-out examples to evaluate on; 0: all."),
    ] = 0


class Wire(Record, frozen=True):
    """Transfers of weights and updates."""

    chunk: Annotated[
        int,
        Meta(
            ge=0,
            le=2**24,
            description="Bytes per chunk; 0: 256 KiB, or less if the broker accepts less.",
        ),
    ] = 0
    slots: Annotated[Positive, Meta(description="Maximum number of simultaneous uploads.")] = 8
    workers: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Processes that receive updates beside the coordinator's own; 0: none, it "
            "receives them itself.",
        ),
    ] = 0
    codec: Annotated[
        str,
        Meta(
            description="Codec of the devices' updates: a built-in one, one of a package that is "
            "installed here and on the devices, or module:attribute for your own."
        ),
    ] = "raw"
    slow_codec: Annotated[
        str,
        Meta(
            description="Codec of the updates of a device that can train a larger submodel with "
            "it than with `codec`, because its uplink is slow; empty: none."
        ),
    ] = ""

    weights_codec: Annotated[
        WeightsCodec,
        Meta(
            description="Codec of the weights that devices download; one that cannot decode it "
            "gets them without a codec."
        ),
    ] = "raw"

    @property
    def codecs(self) -> tuple[str, ...]:
        """The codecs of the run."""
        return tuple(filter(None, (self.codec, self.slow_codec, self.weights_codec)))


class Observe(Record, frozen=True):
    """Additional readers of the run's events."""

    readers: Annotated[
        tuple[str, ...],
        Meta(
            description="Names of readers: a built-in one, one of an installed package, or "
            "module:function for your own."
        ),
    ] = ()


class Journal(Record, frozen=True):
    """State written during a round, from which an interrupted run resumes."""

    every: Annotated[
        Natural,
        Meta(
            description="Updates between two snapshots of the aggregate, at least a quarter of "
            "those of the round; 0: no snapshots."
        ),
    ] = 32
    waiting: Annotated[
        Natural,
        Meta(
            description="Maximum number of waiting updates. Updates wait so that they are added in "
            "order of agent names, which makes a run reproducible bit for bit; if more wait, they "
            "are added as they arrive. 0: no limit."
        ),
    ] = 256
