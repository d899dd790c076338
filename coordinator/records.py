"""What is kept of a finished round: how it went, and how good each submodel was after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from coordinator.journal import Entry
from coordinator.standing import Standing
from federated.task import Task
from federated.wire.releases import marked
from models.submodel import Submodel

__all__ = ["Round", "Score"]


@dataclass(frozen=True)
class Score:
    """How a submodel did in one view of it; see `federated.scores.metrics` for what the numbers mean.

    view: `central` (the coordinator's held-out data), `devices` (theirs, all together), `labels` (the same, absent classes masked), `before`
    and `after` (the devices' own, before and after local training); of several exits also each, `central/exit0` or
    `devices/exit0`, and the mean of their logits, `central/ensemble` (DepthFL).
    agent: whose data, where the score is of one device. metrics: all numbers by name, accuracy and loss included.
    trained_updates: how many updates of the run so far trained this submodel (see `coordinator.counts`); None where that is not known. It is
    counted when scores are read, not stored with them.
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
class Round:
    """All that is written of a finished round. tensors: the state after it; fleet: how many agents trained each submodel; standings: of agents.

    carried: tasks that may still be answered. touched: what the round folded into, where that matters to later ones; as text.
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
    carried: Sequence[Task] = ()
    touched: str = ""
