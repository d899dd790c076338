"""What is kept of a finished round: how it went, and how good each submodel was after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coordinator.assign.standing import Standing
from federated.wire.release_files import marked
from models.submodel import Submodel

if TYPE_CHECKING:
    import torch

__all__ = ["Entry", "Folded", "RoundRecord", "Score"]


@dataclass(frozen=True)
class Entry:
    """What became of one agent's task in a round. outcome: `folded`, or why not; seconds: from task
    to acceptance.

    step, peak: mean seconds of a step and bytes at the peak, as the device says; 0 where it does
    not.
    position: how many updates of the round were folded before it; digest: sha256 of the update as
    it came. Of one that was folded. task: the round of its task, where that was an earlier one;
    else 0.
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
    """An update that is in the total, and what it taught. submodel: that it was of; tallies: the
    device's own scores, where it took any.
    """

    entry: Entry
    submodel: Submodel
    standing: Standing
    tallies: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """How a submodel did in one view of it; see `federated.engine.tallies.metrics` for what the
    numbers mean.

    view: `central` (the coordinator's held-out data), `devices` (theirs, all together), `labels`
    (the same, absent classes masked), `before` and `after` (the devices' own, before and after
    local training); of several exits also each, `central/exit0` or
    `devices/exit0`, and the mean of their logits, `central/ensemble` (DepthFL).
    agent: whose data, where the score is of one device. metrics: all numbers by name, accuracy and
    loss included.
    trained_updates: how many updates of the run so far trained this submodel (see
    `coordinator.store.training_counts`); None where that is not known. It is counted when scores
    are read, not stored with them.
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
        """The submodel for a person, marked where no update trained it."""
        return marked(self.submodel, untrained=self.trained_updates == 0)


@dataclass(frozen=True)
class RoundRecord:
    """What is stored of a finished round.

    round: its number, from 1.
    seconds: that it took.
    tensors: the state after it, by home.
    fleet: how many agents would be given each submodel.
    entries: what became of each task.
    scores: of each submodel after it.
    bytes_up, bytes_down: from and to the agents, through the coordinator's link.
    standings: agent -> what the rounds so far have shown of it.
    touched: what the round folded into, as text; empty where late updates do not count.
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
