"""How good each submodel is: batch norm statistics calibrated by the fleet, then scores on the
devices' and on the coordinator's held-out data.

Statistics are linear in batches, so the fleet's, weighted by batches, are those of one pass over
all data (HeteroFL, arXiv 2010.01264, section 3; golden `static_bn`). Under a robust rule they are
each entry's median over the devices instead. They live in the state as `stats/SUBMODEL/...` until
the next round changes the weights.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from coordinator.assign import offers
from coordinator.fleet.shipment import STATS, Shipment, statistics_of
from coordinator.observe.records import Score
from coordinator.observe.score_summary import of_devices, score, unique
from coordinator.phases.collectors import Answers, Calibration, Scoring
from coordinator.phases.context import RunContext
from coordinator.phases.fleet_history import FleetHistory
from coordinator.phases.patience import limit_phase
from coordinator.round.round import Agent
from coordinator.round.round_events import PhaseBegan
from coordinator.round.rules import typical
from coordinator.round.task_state import Planned
from federated.data.dataset import Dataset
from federated.errors import ExportError
from federated.method import Method, State
from federated.task import Recipe, Work
from federated.training.execution import TrainingSet
from federated.training.scoring import evaluate as evaluate_locally
from models.cost import cost
from models.families.catalogue import build, shapes, statistics
from models.layers.batch_norm import calibrate
from models.submodel import Network, Submodel

__all__ = ["Evaluator", "assemble", "without_statistics"]

log = logging.getLogger(__name__)

BATCH = 256  # examples at a time on the coordinator
# numbers that they may answer with: of a text each place answers for the whole vocabulary
ROOM = 2**24


def assemble(state: State, method: Method, submodel: Submodel) -> nn.Module:
    """A submodel of a state, in evaluation mode: what is scored and what is exported. Raises
    ExportError where it lacks batch norm statistics.
    """
    net = build(submodel)
    local = dict(method.dispatch(state, method.place(state, submodel))) | statistics_of(
        state, submodel
    )
    if absent := shapes(submodel).keys() - local.keys():
        raise ExportError(
            f"submodel {submodel.name} under {method.name}: {len(absent)} tensors stay "
            f"on the devices, such as {min(absent)}"
        )
    missing = statistics(submodel).keys() - local.keys()
    if missing:
        raise ExportError(
            f"submodel {submodel.name} has no batch norm statistics after round "
            f"{state.round}: no agent calibrated it"
        )
    net.load_state_dict(local, strict=False)
    return net.eval()


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the submodels of a run.

    run: what the rounds share.
    held: the coordinator's own data, or None.
    device: where the coordinator itself computes.
    """

    run: RunContext
    held: Dataset | None
    device: str = "cpu"

    def evaluate(
        self, state: State, worked: Mapping[str, Submodel], history: FleetHistory
    ) -> tuple[State, tuple[Score, ...]]:
        """Calibrate and score submodels after a round; return the state with statistics, and the
        scores.

        worked: agent -> submodel that it had in the round.
        history: says which agents have trained a submodel of which devices keep a part to
        themselves. Only they can score it.
        """
        config, fleet = self.run.config.evaluate, self.run.fleet
        submodels = self._select(worked, state.round)
        if state.settings["norm"] == "static":
            agents = [a for a in fleet.free() if config.calibrate == "fleet" or a.name in worked]
            state = self._calibrate(state, submodels, agents, history)
        known = [
            s
            for s in submodels
            if not statistics(s) or state.settings["norm"] == "tracked" or statistics_of(state, s)
        ]
        asked = fleet.free() if config.devices else ()
        return state, (
            *self._score_by_devices(state, known, asked, history),
            *self._score_centrally(state, known),
        )

    def _select(self, worked: Mapping[str, Submodel], number: int) -> list[Submodel]:
        """The whole menu every so many rounds and at the end; in between, what was trained and the
        largest.
        """
        config, menu = self.run.config, self.run.menu
        if number % config.evaluate.every == 0 or number >= config.rounds:
            return unique(menu)
        if not config.evaluate.between:
            return []
        used = {submodel.plain for submodel in worked.values()}
        return [
            submodel for submodel in unique(menu) if submodel in used or submodel == menu[-1].plain
        ]

    # ---- calibration -----------------------------------------------------------------------------

    def _calibrate(
        self,
        state: State,
        submodels: Sequence[Submodel],
        agents: Sequence[Agent],
        history: FleetHistory,
    ) -> State:
        if self.run.config.evaluate.calibrate == "coordinator":
            return self._calibrate_here(state, submodels)
        shipment = Shipment(self.run.fleet, state, self.run.method, "calibrate")
        tasks = self._plan_tasks(
            state, shipment, [s for s in submodels if statistics(s)], agents, history
        )
        calibration = Calibration(self.run.config.robust.rule != "none")
        self._ask(state, "calibrate", tasks, calibration)
        return with_statistics(state, calibration.statistics())

    def _calibrate_here(self, state: State, submodels: Sequence[Submodel]) -> State:
        assert self.held is not None, "checked at start"
        batches = torch.split(torch.from_numpy(self.held.x_held), self._batch(state))
        measured: dict[str, torch.Tensor] = {}
        for submodel in submodels:
            net = build(submodel)
            net.load_state_dict(
                self.run.method.dispatch(state, self.run.method.place(state, submodel)),
                strict=False,
            )
            stats, _ = calibrate(net.to(self.device), (batch.to(self.device) for batch in batches))
            measured |= {
                f"{STATS}{submodel.name}/{name}": value.cpu() for name, value in stats.items()
            }
        return with_statistics(state, measured)

    # ---- scores ----------------------------------------------------------------------------------

    def _score_by_devices(
        self,
        state: State,
        submodels: Sequence[Submodel],
        agents: Sequence[Agent],
        history: FleetHistory,
    ) -> list[Score]:
        shipment = Shipment(self.run.fleet, state, self.run.method, "evaluate", calibrated=True)
        holding = [a for a in agents if a.profile is not None and a.profile.data.held_out]
        tasks = self._plan_tasks(state, shipment, submodels, holding, history)
        scoring = Scoring()
        self._ask(state, "evaluate", tasks, scoring)
        return of_devices(scoring.found)

    def _score_centrally(self, state: State, submodels: Sequence[Submodel]) -> list[Score]:
        if self.held is None or not len(self.held.x_held):
            return []
        scores, few = [], self.run.config.evaluate.examples or len(self.held.x_held)
        stride = max(1, len(self.held.x_held) // few)
        x, y = self.held.x_held[::stride][:few], self.held.y_held[::stride][:few]
        for submodel in submodels:
            recipe = self.run.method.recipe(state, submodel)
            if recipe.keep:
                continue  # there is no whole network here
            net = assemble(state, self.run.method, submodel).to(self.device)
            recipe = replace(recipe, batch=at_once(submodel.network), per_class=True)
            tallies = evaluate_locally(net, submodel, recipe, TrainingSet(x, y))
            scores += [
                score(submodel, "central" if view == "all" else f"central/{view}", tally)
                for view, tally in tallies.items()
            ]
        return scores

    # ---- tasks without steps ---------------------------------------------------------------------

    def _batch(self, state: State) -> int:
        return self.run.method.recipe(state, self.run.menu[0]).batch

    def _plan_tasks(
        self,
        state: State,
        shipment: Shipment,
        submodels: Sequence[Submodel],
        agents: Sequence[Agent],
        history: FleetHistory,
    ) -> list[Planned]:
        """Give each submodel to the agents that can hold it for a forward pass, or to as many of
        them as the configuration allows.

        Agents that sit out this round are asked only if nobody else can hold a submodel.
        """
        chosen: list[tuple[Agent, Submodel, Recipe, float]] = []
        for submodel in submodels:
            recipe = replace(
                self.run.method.recipe(state, submodel),
                per_class=self.run.config.evaluate.per_class,
            )
            holders = [a for a in agents if can_hold(a, submodel, self.run.config.assign.memory)]
            if recipe.keep:
                holders = [
                    a
                    for a in holders
                    if a.name in history.folded and history.assigned[a.name].plain == submodel
                ]
            holders = [a for a in holders if not a.resting(shipment.work, state.round)] or holders
            if self.run.config.evaluate.agents:
                holders = holders[: self.run.config.evaluate.agents]
            for agent in holders:
                seconds = (
                    offers.offers(agent.profile, [submodel], recipe, 1.0)[0].seconds
                    if agent.profile
                    else 0.0
                )
                chosen.append((agent, submodel, recipe, seconds))
        needed: dict[str, float] = {}
        for agent, _, _, seconds in chosen:
            # it does its tasks one after the other
            needed[agent.name] = needed.get(agent.name, 0.0) + seconds
        usual = typical(self.run.fleet.round, shipment.work, needed.items())
        limit = limit_phase(
            self.run.config.fleet.deadline,
            self.run.patience,
            max(needed.values(), default=0.0),
            usual,
        )
        planned = []
        for agent, submodel, recipe, _ in chosen:
            task = shipment.task(agent.name, submodel, recipe, limit, round=state.round)
            planned.append(
                Planned(replace(task, since=history.folded.get(agent.name, 0)), needed[agent.name])
            )
        return planned

    def _ask(self, state: State, work: Work, tasks: Sequence[Planned], answers: Answers) -> None:
        """Sends tasks and collects their answers, until all are in or nobody is left who could give
        one.
        """
        limit = max((one.task.deadline for one in tasks), default=0.0)
        self.run.fleet.run_phase(
            PhaseBegan(self.run.fleet.clock(), work, state.round, tuple(tasks), limit, len(tasks)),
            answers,
        )


def at_once(network: Network) -> int:
    """How many examples the coordinator answers at a time."""
    places = math.prod(network.inputs) if network.objective in {"next", "masked"} else 1
    return max(1, min(BATCH, ROOM // (network.outputs * places)))


def with_statistics(state: State, measured: Mapping[str, torch.Tensor]) -> State:
    """The state with these statistics and none of before."""
    return replace(state, tensors={**without_statistics(state).tensors, **measured})


def without_statistics(state: State) -> State:
    return replace(
        state,
        tensors={
            home: value for home, value in state.tensors.items() if not home.startswith(STATS)
        },
    )


def can_hold(agent: Agent, submodel: Submodel, share: float) -> bool:
    """Whether a forward pass fits: the weights twice (received and loaded), and a batch that no
    gradient keeps alive.
    """
    what = cost(submodel, 1)
    return (
        agent.profile is not None and 2 * what.bytes + what.memory <= share * agent.profile.memory
    )
