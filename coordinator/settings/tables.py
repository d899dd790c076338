"""The tables of a run's configuration that decide what is learned, by whom, and how it is checked.

Each field has its bounds, its description and its default here, and nowhere else: errors,
`coordinator schema` and `coordinator init` are made from them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from federated.device.trainers.catalogue import DEFAULT
from federated.settings import Natural, Record, Seed

__all__ = [
    "Assign",
    "Data",
    "Evaluate",
    "Fleet",
    "Journal",
    "Model",
    "Observe",
    "Positive",
    "Private",
    "Robust",
    "Simulate",
    "Wire",
]

Positive = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(gt=0, le=1)]
NotNegative = Annotated[float, Meta(ge=0)]
Speed = Annotated[float, Meta(gt=0)]


class Model(Record, frozen=True):
    """The largest network."""

    name: Annotated[
        str,
        Meta(
            description="A family such as preresnet-18, one of an installed package, or "
            "module:function for your own."
        ),
    ] = "preresnet"
    init: Annotated[
        str,
        Meta(
            description="Start from this checkpoint: a run's, a file of torchvision's, or "
            "torchvision:DEFAULT; empty: random weights from the seed."
        ),
    ] = ""


class Data(Record, frozen=True):
    """The coordinator's data."""

    name: Annotated[
        str,
        Meta(
            description="A data set, one of an installed package, a file, module:function, or "
            "'agents' if the coordinator has no data."
        ),
    ] = "digits"
    root: Annotated[
        str | None, Meta(description="Folder of named data sets; they are downloaded there.")
    ] = None


class Simulate(Record, frozen=True):
    """Only for `coordinator simulate`: a real fleet brings its own devices and data."""

    agents: Annotated[Positive, Meta(description="Number of devices, named d0, d1, ...")] = 10
    partition: Annotated[
        str,
        Meta(
            description="How training examples are distributed over the devices, as `edge-agent "
            "join --partition` takes it."
        ),
    ] = "dirichlet:1.0"
    held: Annotated[
        float, Meta(gt=0, lt=1, description="Share of its examples that a device holds out.")
    ] = 0.2
    speeds: Annotated[
        tuple[Speed, ...],
        Meta(
            description="Relative speeds: the first for the first equal share of the devices, and "
            "so on. They decide which submodel a device gets, unless assign.submodels does."
        ),
    ] = (1.0,)
    delays: Annotated[
        tuple[NotNegative, ...],
        Meta(
            description="Least seconds of a training, for equal shares of the devices in order; "
            "empty: no delay."
        ),
    ] = ()
    seeds: Annotated[
        tuple[Seed, ...], Meta(description="One run for each; empty: one run, by `seed`.")
    ] = ()
    device: Annotated[
        Literal["cpu", "cuda"], Meta(description="Where the simulated devices train.")
    ] = "cpu"
    trainer: Annotated[
        str,
        Meta(
            description="Trainer of the simulated devices: pytorch, one of an installed package, "
            "or module:function for your own."
        ),
    ] = DEFAULT
    workers: Annotated[
        Natural,
        Meta(description="Training processes; 0: one per processor, with cuda at most 4."),
    ] = 0
    target: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Accuracy of the largest submodel up to which multiply-adds are counted; "
            "the run does not stop there. 0: target_accuracy.",
        ),
    ] = 0.0


class Fleet(Record, frozen=True):
    """Which agents take part in a round, and when it closes."""

    min_agents: Annotated[Positive, Meta(description="Agents to wait for.")] = 2
    fraction: Annotated[Share, Meta(description="Fraction of the agents needed per round.")] = 1.0
    quorum: Annotated[
        Share, Meta(description="Fraction of the needed agents whose updates close a round.")
    ] = 1.0
    select: Annotated[
        str,
        Meta(
            description="Only agents that meet this condition take part, such as 'memory>=2GB "
            "and label=eu'; empty: all."
        ),
    ] = ""
    deadline: Annotated[
        NotNegative,
        Meta(description="Seconds of a round; 0: derived from the fleet's measured times."),
    ] = 0.0
    wait: Annotated[
        NotNegative,
        Meta(
            description="Seconds without enough agents, or without one that can train, after which "
            "the run ends; 0: wait for ever."
        ),
    ] = 0.0
    over: Annotated[
        float,
        Meta(
            ge=0,
            le=10,
            description="Agents asked beyond those needed, as a fraction of them, in case some "
            "fail.",
        ),
    ] = 0.0
    late: Annotated[
        Literal["drop", "take"],
        Meta(
            description="What happens to an update of a closed round: it is dropped, or folded "
            "into a later round with a weight by its age."
        ),
    ] = "drop"
    mode: Annotated[
        Literal["sync", "buffered"],
        Meta(
            description="sync: a round waits for its agents. buffered: agents train at their own "
            "pace, and a fixed number of updates closes a round."
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
        Meta(description="Rounds that a late update may be old; older ones are dropped."),
    ] = 10


class Assign(Record, frozen=True):
    """Which submodel each agent gets."""

    submodels: Annotated[
        dict[str, str],
        Meta(
            description="Agent to submodel, whatever was measured. Patterns with *, ? and [0-4] "
            "match many agents; the first match counts."
        ),
    ] = field(default_factory=dict)
    slack: Annotated[
        float,
        Meta(ge=1, description="A device may take this many times as long as the fleet's pace."),
    ] = 1.15
    memory: Annotated[
        Share, Meta(description="Fraction of a device's measured memory that training may use.")
    ] = 0.6


class Robust(Record, frozen=True):
    """Protection of the model from devices that send wrong updates."""

    bound: Annotated[
        NotNegative,
        Meta(
            description="Refuse an update whose norm exceeds the median of earlier rounds (the "
            "larger of its submodel's and all submodels') this many times; 0: no bound. Stay far "
            "above 1: a device that had converged moves far when its data change."
        ),
    ] = 100.0
    rule: Annotated[
        str,
        Meta(
            description="How updates are combined: a built-in rule, one of an installed package, "
            "or module:attribute. none: as the method does."
        ),
    ] = "none"
    byzantine: Annotated[
        Natural, Meta(description="Malicious agents per round that the rule must withstand.")
    ] = 1
    clip: Annotated[
        NotNegative,
        Meta(
            description="Norm to which rule clip limits an update; 0: the median of its submodel's "
            "in earlier rounds."
        ),
    ] = 0.0


class Private(Record, frozen=True):
    """Differential privacy of the devices; off without noise."""

    noise: Annotated[
        NotNegative,
        Meta(
            description="Standard deviation of the noise on a round's sum, as a multiple of clip."
        ),
    ] = 0.0
    clip: Annotated[
        NotNegative, Meta(description="L2 norm to which the change of one update is limited.")
    ] = 0.0
    delta: Annotated[
        float, Meta(gt=0, lt=1, description="The delta for which epsilon is computed.")
    ] = 1e-5
    epsilon: Annotated[
        NotNegative,
        Meta(description="Stop before the round that would exceed this; 0: only report epsilon."),
    ] = 0.0
    uncovered: Annotated[
        tuple[Literal["moments", "scores", "statistics"], ...],
        Meta(
            description="What devices may reveal without noise: moments (mean and deviation of "
            "their inputs), scores (on held-out data), statistics (of batch norm)."
        ),
    ] = ()


class Evaluate(Record, frozen=True):
    """When and on what the submodels are evaluated."""

    every: Annotated[
        Positive, Meta(description="Rounds between two evaluations of all submodels.")
    ] = 5
    between: Annotated[
        bool,
        Meta(
            description="Whether the submodels in use and the largest are evaluated in all other "
            "rounds, too."
        ),
    ] = True
    devices: Annotated[
        bool, Meta(description="Whether devices evaluate on their held-out data.")
    ] = True
    local: Annotated[
        bool,
        Meta(description="Whether devices evaluate before and after each local training."),
    ] = False
    per_class: Annotated[
        bool,
        Meta(
            description="Whether devices report scores per class (for macro-F1), which reveals how "
            "often each class occurs in their data."
        ),
    ] = False
    calibrate: Annotated[
        Literal["fleet", "selected", "coordinator"],
        Meta(
            description="Whose data give the batch norm statistics: all agents', those of the "
            "round's agents, or the coordinator's."
        ),
    ] = "fleet"
    agents: Annotated[
        Natural, Meta(description="Agents that calibrate and evaluate one submodel; 0: all.")
    ] = 0
    examples: Annotated[
        Natural,
        Meta(description="Examples of the coordinator's held-out data that are used; 0: all."),
    ] = 0


class Wire(Record, frozen=True):
    """Transfers of weights and updates."""

    chunk: Annotated[
        int,
        Meta(ge=0, le=2**24, description="Bytes per chunk; 0: as many as the broker accepts."),
    ] = 0
    slots: Annotated[Positive, Meta(description="Updates that are received at a time.")] = 8
    codec: Annotated[
        str,
        Meta(
            description="How devices encode their updates: raw, fp16, one of a package that is "
            "installed here and on the devices, or module:attribute for your own."
        ),
    ] = "raw"


class Observe(Record, frozen=True):
    """Readers of the run's events, beside those that every run has."""

    readers: Annotated[
        tuple[str, ...],
        Meta(
            description="csv, tensorboard, mlflow, the name of a reader of an installed package, "
            "or module:function."
        ),
    ] = ()


class Journal(Record, frozen=True):
    """What is written during a round, so that an interrupted run can resume."""

    every: Annotated[
        Natural,
        Meta(description="Updates folded between two snapshots of the sums; 0: no snapshots."),
    ] = 32
    waiting: Annotated[
        Natural,
        Meta(
            description="Updates that may wait for those of agents with earlier names, so that a "
            "run repeats bit for bit; beyond this they are folded as they arrive. 0: no limit."
        ),
    ] = 256
