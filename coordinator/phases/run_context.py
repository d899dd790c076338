"""Define the values that all rounds of a run share, and compute the time limit of a phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.assign.decisions import LastDecisions
from coordinator.assign.submodel_pins import Pins
from coordinator.fleet.message_loop import MessageLoop
from coordinator.fleet.training_graphs import TrainingGraphs
from coordinator.observe.events import Publish
from coordinator.round.leases import FIRST_LEASE, MEDIAN_CAP, SLACK
from coordinator.round.task_state import MAX_LEASES
from coordinator.settings.config import Config
from coordinator.store.control_requests import Control
from coordinator.store.late_update_bases import PastStates
from coordinator.store.run_store import Store
from coordinator.trust.configured_defences import Defences
from coordinator.trust.update_checks import find_card
from federated.method import Method
from federated.task import Card, Recipe, Task
from federated.trainer_capabilities import GRAPHS
from federated.wire.codecs.weights import choose_weights_codec
from models.submodel import Submodel

__all__ = ["ENDLESS", "MIN_LIMIT", "PATIENCE", "RunContext", "limit_phase"]

PATIENCE = 6.0  # time limit of a phase, in predicted seconds of its slowest task
# the patience of a simulation: its devices wait for a worker as long as it takes, even with a
# deadline, which only chooses agents
ENDLESS = 1e9
MIN_LIMIT = 60.0  # seconds


def limit_phase(deadline: float, patience: float, slowest: float, typical: float) -> float:
    """Return the seconds after which a phase closes: the configured deadline, or `patience` times
    the predicted seconds of its slowest task.

    Predictions start from claims of devices, so a phase lasts no longer than the longest lease of
    an agent with typical progress.

    deadline: seconds; 0: none.
    slowest, typical: predicted seconds (see `leases.estimate_typical_seconds`).
    """
    if patience >= ENDLESS:
        return max(MIN_LIMIT, patience * slowest)
    longest = MAX_LEASES * max(FIRST_LEASE, SLACK * MEDIAN_CAP * typical)
    return deadline or max(MIN_LIMIT, min(patience * slowest, longest))


@dataclass(frozen=True)
class RunContext:
    """The values that all rounds of a run share. `coordinator.run.runner` makes them before the
    first round.

    config: settings of the run.
    method: method of the run; wrapped by `federated.engine.late_updates` if late updates count.
    menu: the submodels that agents train, smallest first.
    fleet: the agents and the current phase.
    store: folder of the run.
    publish: sends an event to all readers of the run.
    control: requests of users to pause or stop the run.
    defences: checks of updates, robust rules, and the budget of a private run.
    past: the states that late updates are based on; None if late updates do not count.
    pins: the submodels that the configuration fixes for agents.
    recipes: of the menu's submodels before the first round.
    graphs: with which agents without PyTorch train.
    decisions: about each agent in the last round.
    patience: time limit of a phase without a deadline, in predicted seconds of its slowest task.
    """

    config: Config
    method: Method
    menu: tuple[Submodel, ...]
    fleet: MessageLoop
    store: Store
    publish: Publish
    control: Control
    defences: Defences
    past: PastStates | None
    pins: Pins
    recipes: tuple[Recipe, ...]
    graphs: TrainingGraphs
    decisions: LastDecisions
    patience: float

    def request_graphs(self, recipes: Sequence[Recipe]) -> None:
        """Export the training graphs of the menu if a connected agent needs some.

        recipes: of the menu's submodels.
        """
        agents = self.fleet.agents.values()
        if any(agent.profile and GRAPHS in agent.profile.capabilities for agent in agents):
            self.graphs.request(zip(self.menu, recipes, strict=True))

    def explain_missing_graphs(self, agent: str, submodel: Submodel, recipe: Recipe) -> str:
        """Return why an agent cannot train a submodel for lack of training graphs; empty if it can,
        or needs none.
        """
        profile = self.fleet.agents[agent].profile
        return self.graphs.explain_absence(profile, submodel, recipe) if profile else ""

    def complete_task(self, task: Task) -> Task:
        """Return a task with the training graphs that its agent needs."""
        agent = self.fleet.agents.get(task.agent)
        return self.graphs.complete(task, agent.profile) if agent is not None else task

    def choose_weights_codec(self, agent: str) -> str:
        """Return the codec of the weights that an agent downloads."""
        profile = self.fleet.agents[agent].profile
        known = profile.weights_codecs if profile is not None else ()
        return choose_weights_codec(self.config.wire.weights_codec, known)

    def find_card(self, agent: str) -> Card | None:
        """Return an agent's present description of its data; None if it has sent none."""
        return find_card(self.fleet.agents, agent)

    @property
    def count_ratio(self) -> float:
        """The limit of the examples with which an agent counts, as a multiple of the median; 0: no
        limit. The counts of simulated devices are facts.
        """
        return self.config.robust.examples if self.measures_time else 0.0

    @property
    def measures_time(self) -> bool:
        """True if measured seconds say something about the devices. Simulated devices only claim
        their speeds.
        """
        return self.patience < ENDLESS
