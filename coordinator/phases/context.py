"""What the rounds of a run share, and none of them changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.fleet.fleet import Fleet
from coordinator.observe.events import Publish
from coordinator.phases.patience import ENDLESS
from coordinator.settings.config import Config
from coordinator.store.control import Control
from coordinator.store.past_states import PastStates
from coordinator.store.store import Store
from coordinator.trust.defences import Defences
from federated.method import Method
from models.submodel import Submodel

__all__ = ["RunContext"]


@dataclass(frozen=True)
class RunContext:
    """What stays the same from the first round of a run to its last. `coordinator.run.start` makes
    all of it before the first round.

    config: the run's settings.
    method: the run's method; where late updates count, it takes them too (see
    `federated.engine.buffered`).
    menu: the submodels that agents train, smallest first.
    fleet: the agents, and the phase that is under way.
    store: the run's folder.
    publish: hands an event to all readers of the run.
    control: what people ask of the run while it is under way.
    defences: checks of updates, robust rules, and the account of a private run.
    past: the states that late updates were made from; None where late updates do not count.
    pinned: agent -> the submodel that the configuration fixes for it, if any.
    patience: times the predicted seconds after which a phase without a deadline closes.
    """

    config: Config
    method: Method
    menu: tuple[Submodel, ...]
    fleet: Fleet
    store: Store
    publish: Publish
    control: Control
    defences: Defences
    past: PastStates | None
    pinned: Callable[[str], Submodel | None]
    patience: float

    @property
    def measures_time(self) -> bool:
        """Whether seconds that pass here say something of the devices. Simulated devices claim
        their speeds.
        """
        return self.patience < ENDLESS
