"""Define the records of a finished round: the outcome of its tasks, and the scores of each submodel
after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coordinator.assign.agent_track_record import Standing
from federated.wire.release_messages import label_submodel
from models.submodel import Submodel

if TYPE_CHECKING:
    import torch

__all__ = ["Entry", "Folded", "RoundRecord", "Score"]


@dataclass(frozen=True)
class Entry:
    """The outcome of one agent's task in a round.

    agent: its name.
    submodel: that it trained, by name.
    outcome: `folded`, or why not.
    samples: that it trained on.
    steps: that it took.
    loss: mean training loss.
    seconds: from the task to the accepted update.
    step: mean seconds of a step, as reported by the device; 0: not reported.
    peak: bytes of peak memory, as reported by the device; 0: not reported.
    position: number of updates of the round that were folded before this one.
    digest: sha256 of the update as it arrived; empty if it was not folded.
    task: round of its task, if that was an earlier one; else 0.
    """

    agent: str
    submodel: str
    outcome: str
    samples: int = 0
    steps: int = 0
    loss: float = float("nan")
    seconds: float = 0.0
    step: float = 0.0
    peak: int = 0
    position: int = 0
    digest: str = ""
    task: int = 0


@dataclass(frozen=True)
class Folded:
    """A folded update.

    entry: its record.
    submodel: that the agent trained.
    standing: the agent's record after this update.
    tallies: the device's own scores by view; empty without any.
    """

    entry: Entry
    submodel: Submodel
    standing: Standing
    tallies: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """A submodel's score in one view.

    submodel: its name.
    view: `central` (the coordinator's held-out data), `devices` (held-out data of all devices),
        `labels` (the same, absent classes masked), `before` and `after` (each device's own, before
        and after local training). A network with several exits also has `central/exit0` or
        `devices/exit0` and so on, and the mean of their logits, `central/ensemble` (DepthFL).
    accuracy: see `federated.training.score_sums.metrics`, as for all numbers.
    loss: mean over the examples.
    examples: number of examples.
    agent: of the data; empty for all together.
    metrics: all numbers by name, including accuracy and loss.
    trained_updates: number of the run's updates that trained this submodel; None if unknown. It is
        counted when scores are read, not stored (see `coordinator.store.training_counts`).
    """

    submodel: str
    view: str
    accuracy: float
    loss: float
    examples: int
    agent: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    trained_updates: int | None = None

    @property
    def label(self) -> str:
        """Return the submodel's name, marked if no update trained it."""
        return label_submodel(self.submodel, untrained=self.trained_updates == 0)


@dataclass(frozen=True)
class RoundRecord:
    """The stored record of a finished round.

    round: its number, from 1.
    seconds: its duration.
    tensors: the state after it, by home.
    fleet: number of agents by assigned submodel.
    entries: outcomes of its tasks.
    scores: of each submodel after it.
    bytes_up, bytes_down: from and to the agents, through the coordinator's link.
    standings: agent -> its record over the rounds so far.
    touched: state that the round folded into, as text; empty if late updates are dropped.
    """

    round: int
    seconds: float
    tensors: Mapping[str, torch.Tensor]
    fleet: Mapping[Submodel, int]
    entries: Sequence[Entry] = ()
    scores: Sequence[Score] = ()
    bytes_up: int = 0
    bytes_down: int = 0
    standings: Mapping[str, Standing] = field(default_factory=dict)
    touched: str = ""
