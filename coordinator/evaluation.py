"""How good each submodel is: batch norm statistics calibrated by the fleet, then scores on the devices' and on the coordinator's held-out data.

Statistics are linear in batches, so the fleet's, weighted by batches, are those of one pass over all data (HeteroFL, arXiv 2010.01264, section 3;
golden `static_bn`). Under a robust rule they are each entry's median over the devices instead. They live in the state as `stats/SUBMODEL/...` until
the next round changes the weights.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from coordinator import assignment
from coordinator.acceptance import check_scores, check_statistics
from coordinator.agent import Agent
from coordinator.collection import Settled
from coordinator.config import Config
from coordinator.fleet import Fleet
from coordinator.records import Score
from coordinator.scores import of_devices, score
from coordinator.weights import STATS, Shipment, received, statistics_of
from federated.aggregate import Total, fold, mean
from federated.errors import ExportError
from federated.local import evaluate as evaluate_locally
from federated.method import Method, Part, State
from federated.task import Task, Update, Work
from models.cost import cost
from models.families import build, shapes, statistics
from models.norms import calibrate
from models.slicing import corner
from models.submodel import Network, Submodel

if TYPE_CHECKING:
    from federated.data.dataset import Dataset

__all__ = ["ENDLESS", "Evaluator", "assemble", "without_statistics"]

log = logging.getLogger(__name__)

BATCH = 256  # examples at a time on the coordinator
ROOM = 2**24  # numbers that they may answer with: of a text each place answers for the whole vocabulary
PATIENCE = 6.0  # times the predicted seconds after which a score or statistics are no longer waited for
GRACE = 60.0
ENDLESS = 1e9  # the patience of a simulation: its devices wait for a worker as long as it takes, whatever deadline they were chosen by


def assemble(state: State, method: Method, submodel: Submodel) -> nn.Module:
    """A submodel of a state, in evaluation mode: what is scored and what is exported. Raises ExportError where it lacks batch norm statistics."""
    net = build(submodel)
    local = dict(method.dispatch(state, method.place(state, submodel))) | statistics_of(state, submodel)
    if absent := shapes(submodel).keys() - local.keys():
        raise ExportError(f"submodel {submodel.name} under {method.name}: {len(absent)} tensors stay on the devices, such as {min(absent)}")
    missing = statistics(submodel).keys() - local.keys()
    if missing:
        raise ExportError(f"submodel {submodel.name} has no batch norm statistics after round {state.round}: no agent calibrated it")
    net.load_state_dict(local, strict=False)
    return net.eval()


@dataclass
class Evaluator:
    """Evaluates every submodel of a menu.

    held: the coordinator's own data, or None. patience: times the predicted seconds after which a score or statistics are no longer waited
    for. device: where the coordinator itself computes.
    """

    config: Config
    method: Method
    menu: tuple[Submodel, ...]
    fleet: Fleet
    held: Dataset | None
    patience: float = PATIENCE
    device: str = "cpu"
    assigned: Mapping[str, Submodel] = field(default_factory=dict)

    def evaluate(
        self, state: State, submodels: Sequence[Submodel], selected: Collection[str], assigned: Mapping[str, Submodel]
    ) -> tuple[State, tuple[Score, ...]]:
        """The state with statistics, and the scores of some submodels.

        selected: the agents of the round, for `calibrate = "selected"`. assigned: what each agent trained last: of a submodel of which devices
        keep a part to themselves, only those that have it can say how good it is.
        """
        self.assigned = assigned
        if state.settings["norm"] == "static":
            agents = [a for a in self.fleet.free() if self.config.evaluate.calibrate == "fleet" or a.name in selected]
            state = self._calibrate(state, submodels, agents)
        known = [s for s in submodels if not statistics(s) or state.settings["norm"] == "tracked" or statistics_of(state, s)]
        asked = self.fleet.free() if self.config.evaluate.devices else ()
        return state, (*self._by_devices(state, known, asked), *self._centrally(state, known))

    # ---- calibration -----------------------------------------------------------------------------------------------

    def _calibrate(self, state: State, submodels: Sequence[Submodel], agents: Sequence[Agent]) -> State:
        if self.config.evaluate.calibrate == "coordinator":
            return self._calibrate_here(state, submodels)
        shipment = Shipment(self.fleet, state, self.method)
        tasks = self._tasks(state, shipment, "calibrate", [s for s in submodels if statistics(s)], agents)
        total = Total()
        if self.config.robust.rule != "none":
            return with_statistics(state, middle(received(update) for _, update in self._collect(tasks, shipment, check_statistics)))
        for _, update in self._collect(tasks, shipment, check_statistics):
            fold(total, statistics_parts(received(update)), (update.agent, update.submodel.name))
        return with_statistics(state, {home: mean(one) for home, one in total.sums.items()})

    def _calibrate_here(self, state: State, submodels: Sequence[Submodel]) -> State:
        assert self.held is not None, "checked at start"
        batches = torch.split(torch.from_numpy(self.held.x_held), self._batch(state))
        measured: dict[str, torch.Tensor] = {}
        for submodel in submodels:
            net = build(submodel)
            net.load_state_dict(self.method.dispatch(state, self.method.place(state, submodel)), strict=False)
            stats, _ = calibrate(net.to(self.device), (batch.to(self.device) for batch in batches))
            measured |= {f"{STATS}{submodel.name}/{name}": value.cpu() for name, value in stats.items()}
        return with_statistics(state, measured)

    # ---- scores ----------------------------------------------------------------------------------------------------

    def _by_devices(self, state: State, submodels: Sequence[Submodel], agents: Sequence[Agent]) -> list[Score]:
        shipment = Shipment(self.fleet, state, self.method, calibrated=True)
        tasks = self._tasks(state, shipment, "evaluate", submodels, [a for a in agents if a.profile is not None and a.profile.data.held_out])
        found = [(update.submodel, update.agent, update.notes["tallies"]) for _, update in self._collect(tasks, shipment, check_scores)]
        return of_devices(found)

    def _centrally(self, state: State, submodels: Sequence[Submodel]) -> list[Score]:
        if self.held is None or not len(self.held.x_held):
            return []
        scores, few = [], self.config.evaluate.examples or len(self.held.x_held)
        stride = max(1, len(self.held.x_held) // few)
        x, y = self.held.x_held[::stride][:few], self.held.y_held[::stride][:few]
        for submodel in submodels:
            recipe = self.method.recipe(state, submodel)
            if recipe.keep:
                continue  # there is no whole network here
            net = assemble(state, self.method, submodel).to(self.device)
            recipe = replace(recipe, batch=at_once(submodel.network), per_class=True)
            tallies = evaluate_locally(net, submodel, recipe, x, y)
            scores += [score(submodel, "central" if view == "all" else f"central/{view}", tally) for view, tally in tallies.items()]
        return scores

    # ---- tasks without steps ---------------------------------------------------------------------------------------

    def _batch(self, state: State) -> int:
        return self.method.recipe(state, self.menu[0]).batch

    def _tasks(self, state: State, shipment: Shipment, work: Work, submodels: Sequence[Submodel], agents: Sequence[Agent]) -> list[Task]:
        """Each submodel to the agents that can hold it for a forward pass, or to as many of them as the configuration allows."""
        tasks = []
        for submodel in submodels:
            recipe = replace(self.method.recipe(state, submodel), per_class=self.config.evaluate.per_class)
            holders = [a for a in agents if _holds(a, submodel, self.config.assign.memory)]
            if recipe.keep:
                holders = [a for a in holders if a.name in self.fleet.folded and self.assigned[a.name].plain == submodel]
            if self.config.evaluate.agents:
                holders = holders[: self.config.evaluate.agents]
            for agent in holders:
                seconds = assignment.offers(agent.profile, [submodel], recipe, 1.0)[0].seconds if agent.profile else 0.0
                deadline = self.config.fleet.deadline if self.patience < ENDLESS else 0.0
                limit = deadline or max(GRACE, self.patience * seconds * len(submodels))
                tasks.append(shipment.task(agent.name, work, submodel, recipe, limit, round=state.round, run=self.config.name))
        return tasks

    def _collect(self, tasks: Sequence[Task], shipment: Shipment, check: Callable[[Update], None]) -> Iterator[tuple[Settled, Update]]:
        return self.fleet.collect(
            tasks,
            quorum=len(tasks),
            deadline=max((t.deadline for t in tasks), default=0.0),
            check=lambda settled, update: check(update),
            size=shipment.limit,
        )


def at_once(network: Network) -> int:
    """How many examples the coordinator answers at a time."""
    places = math.prod(network.inputs) if network.objective in {"next", "masked"} else 1
    return max(1, min(BATCH, ROOM // (network.outputs * places)))


def statistics_parts(update: Update) -> list[Part]:
    """What one agent's statistics contribute: their values, weighted by its batches."""
    prefix = f"{STATS}{update.submodel.name}/"
    weight = float(update.notes["batches"])
    return [Part(prefix + name, corner(value.shape), tuple(value.shape), value, weight) for name, value in update.tensors.items()]


def middle(updates: Iterable[Update]) -> dict[str, torch.Tensor]:
    """By home, of every entry the median over the devices: under a robust rule, where a count of batches is a claim that may outweigh all."""
    found: dict[str, list[torch.Tensor]] = {}
    for part in (part for update in updates for part in statistics_parts(update)):
        found.setdefault(part.home, []).append(part.value)
    return {home: torch.from_numpy(np.median([value.numpy() for value in values], axis=0)) for home, values in found.items()}


def with_statistics(state: State, measured: Mapping[str, torch.Tensor]) -> State:
    """The state with these statistics and none of before."""
    return replace(state, tensors={**without_statistics(state).tensors, **measured})


def without_statistics(state: State) -> State:
    return replace(state, tensors={home: value for home, value in state.tensors.items() if not home.startswith(STATS)})


def _holds(agent: Agent, submodel: Submodel, share: float) -> bool:
    """Whether a forward pass fits: the weights twice (received and loaded), and a batch that no gradient keeps alive."""
    what = cost(submodel, 1)
    return agent.profile is not None and 2 * what.bytes + what.memory <= share * agent.profile.memory
