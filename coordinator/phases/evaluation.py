"""Calibrate batch norm statistics with the fleet, and score submodels on the held-out data of
devices and coordinator.

Statistics are linear in batches: the fleet's, weighted by batches, equal those of one pass over all
data (HeteroFL, arXiv 2010.01264, section 3; golden test `static_bn`). Under a robust rule they are
the median of each entry over the devices. The state holds them as `stats/SUBMODEL/...` until the
next round changes the weights.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event

import torch
from torch import nn

from coordinator.assign import affordable_submodels
from coordinator.assign.affordable_submodels import Codecs
from coordinator.fleet.submodel_shipment import STATS, Shipment, select_statistics
from coordinator.observe.fleet_scores import list_networks, make_score, score_devices
from coordinator.observe.round_records import Score
from coordinator.phases.collectors import Calibration, Scoring
from coordinator.phases.fleet_history import FleetHistory
from coordinator.phases.run_context import RunContext, limit_phase
from coordinator.round.collector_interface import Collector
from coordinator.round.leases import estimate_typical_seconds
from coordinator.round.round_events import PhaseBegan
from coordinator.round.round_state import Agent
from coordinator.round.task_state import Planned
from federated.data.dataset import Dataset
from federated.errors import ExportError
from federated.method import Method, State
from federated.system.memory_allocation import return_free_memory
from federated.task import Recipe, Work
from federated.training.evaluation_passes import evaluate as evaluate_locally
from federated.training.training_inputs import TrainingSet
from federated.wire.codecs.catalogue import find_codec
from federated.wire.codecs.raw import RAW
from models.cost import cost
from models.layers.batch_norm import calibrate
from models.submodel import Network, Submodel
from models.submodel_building import arrange_channels, build, shapes, statistics

__all__ = ["Evaluator", "assemble", "drop_statistics"]

log = logging.getLogger(__name__)

MAX_BATCH = 256  # examples at a time on the coordinator
# logits at a time; a text has logits of the whole vocabulary at each position
MAX_LOGITS = 2**24


def assemble(state: State, method: Method, submodel: Submodel) -> nn.Module:
    """Return a submodel of a state in evaluation mode, to score or export it. Raises ExportError if
    tensors or batch norm statistics are missing.
    """
    net = build(submodel)
    local = dict(method.dispatch(state, method.place(state, submodel))) | select_statistics(
        state, submodel
    )
    if absent := shapes(submodel).keys() - local.keys():
        raise ExportError(
            f"submodel {submodel.name} under {method.name}: {len(absent)} tensors stay "
            f"on the devices, such as {min(absent)}"
        )
    if statistics(submodel).keys() - local.keys():
        raise ExportError(
            f"submodel {submodel.name} has no batch norm statistics after round "
            f"{state.round}: no agent calibrated it"
        )
    net.load_state_dict(local, strict=False)
    return net.eval()


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the submodels of a run.

    run: the values that all rounds share.
    data: of the coordinator itself, or None.
    device: where the coordinator computes.
    """

    run: RunContext
    data: Dataset | None
    device: str = "cpu"

    def evaluate(
        self,
        state: State,
        worked: Mapping[str, Submodel],
        history: FleetHistory,
        most_examples: int,
    ) -> tuple[State, tuple[Score, ...]]:
        """Calibrate and score submodels after a round; return the state with statistics, and the
        scores.

        worked: agent -> the submodel that it had in the round.
        history: tells which agents have trained a submodel. If devices keep a part of it to
            themselves, only these agents can score it.
        most_examples: with which the statistics of an agent count at most; 0: no limit.
        """
        config, fleet = self.run.config.evaluate, self.run.fleet
        submodels = self._select(worked, state.round)
        if not submodels:
            return state, ()
        return_free_memory()  # of the round's transfers, before networks take theirs
        if state.settings["norm"] == "static":
            agents = [
                a for a in fleet.list_free() if config.calibrate == "fleet" or a.name in worked
            ]
            state = self._calibrate(state, submodels, agents, history, most_examples)
        calibrated = [
            s
            for s in submodels
            if not statistics(s)
            or state.settings["norm"] == "tracked"
            or select_statistics(state, s)
        ]
        asked = fleet.list_free() if config.devices else ()
        stop = Event()
        with ThreadPoolExecutor(1, "central scores") as executor:
            # this thread mostly waits for the devices
            central = executor.submit(self._score_centrally, state, calibrated, stop.is_set)
            try:
                by_devices = self._score_by_devices(state, calibrated, asked, history)
                return state, (*by_devices, *central.result())
            finally:
                stop.set()

    def _select(self, worked: Mapping[str, Submodel], number: int) -> list[Submodel]:
        """Return the whole menu every few rounds and at the end; in between, the trained submodels
        and the largest.
        """
        config, menu = self.run.config, list_networks(self.run.menu)
        if number % config.evaluate.every == 0 or number >= config.rounds:
            return menu
        if not config.evaluate.between:
            return []
        used = {submodel.plain for submodel in (*worked.values(), self.run.menu[-1])}
        return [submodel for submodel in menu if submodel in used]

    # ---- calibration -----------------------------------------------------------------------------

    def _calibrate(
        self,
        state: State,
        submodels: Sequence[Submodel],
        agents: Sequence[Agent],
        history: FleetHistory,
        most_examples: int,
    ) -> State:
        if self.run.config.evaluate.calibrate == "coordinator":
            return self._calibrate_centrally(state, submodels)
        shipment = Shipment(self.run.fleet, state, self.run.method, "calibrate")
        submodels = [s for s in submodels if statistics(s)]
        batch = self.run.method.recipe(state, self.run.menu[0]).batch
        most = math.ceil(most_examples / batch)
        calibration = Calibration(self.run.find_card, self.run.config.robust.rule != "none", most)
        tasks = self._plan_tasks(state, shipment, submodels, agents, history)
        self._run_phase(state, "calibrate", tasks, calibration)
        return replace_statistics(state, calibration.statistics())

    def _calibrate_centrally(self, state: State, submodels: Sequence[Submodel]) -> State:
        assert self.data is not None, "checked at start"
        method = self.run.method
        batch = method.recipe(state, self.run.menu[0]).batch
        batches = torch.split(torch.from_numpy(self.data.x_held), batch)
        measured: dict[str, torch.Tensor] = {}
        for submodel in submodels:
            net = build(submodel)
            net.load_state_dict(method.dispatch(state, method.place(state, submodel)), strict=False)
            net = arrange_channels(net, submodel).to(self.device)
            stats, _ = calibrate(net, (batch.to(self.device) for batch in batches))
            measured |= {
                f"{STATS}{submodel.name}/{name}": value.cpu() for name, value in stats.items()
            }
        return replace_statistics(state, measured)

    # ---- scores ----------------------------------------------------------------------------------

    def _score_by_devices(
        self,
        state: State,
        submodels: Sequence[Submodel],
        agents: Sequence[Agent],
        history: FleetHistory,
    ) -> list[Score]:
        shipment = Shipment(self.run.fleet, state, self.run.method, "evaluate", calibrated=True)
        able = [a for a in agents if a.profile is not None and a.profile.data.held_out]
        tasks = self._plan_tasks(state, shipment, submodels, able, history)
        scoring = Scoring(self.run.find_card)
        self._run_phase(state, "evaluate", tasks, scoring)
        return score_devices(scoring.found, self.run.count_ratio)

    def _score_centrally(
        self, state: State, submodels: Sequence[Submodel], stop: Callable[[], bool]
    ) -> list[Score]:
        """Score submodels on the coordinator's own data. Raises ExportError, Stopped if `stop`
        returns True.
        """
        if self.data is None or not len(self.data.x_held):
            return []
        scores, count = [], self.run.config.evaluate.examples or len(self.data.x_held)
        stride = max(1, len(self.data.x_held) // count)
        x, y = self.data.x_held[::stride][:count], self.data.y_held[::stride][:count]
        for submodel in submodels:
            recipe = self.run.method.recipe(state, submodel)
            if recipe.keep:
                continue  # the coordinator does not have the whole network
            net = arrange_channels(assemble(state, self.run.method, submodel), submodel)
            net = net.to(self.device)
            recipe = replace(recipe, batch=fit_batch(submodel.network), per_class=True)
            tallies = evaluate_locally(net, submodel, recipe, TrainingSet(x, y), stop)
            scores += [
                make_score(submodel, "central" if view == "all" else f"central/{view}", tally)
                for view, tally in tallies.items()
            ]
        return scores

    # ---- tasks without training ------------------------------------------------------------------

    def _plan_tasks(
        self,
        state: State,
        shipment: Shipment,
        submodels: Sequence[Submodel],
        agents: Sequence[Agent],
        history: FleetHistory,
    ) -> list[Planned]:
        """Plan the tasks of a phase: each submodel goes to the agents that can hold it for a
        forward pass, up to the configured number of agents.
        """
        config = self.run.config
        chosen: list[tuple[Agent, Submodel, Recipe, bool]] = []
        seconds: dict[str, float] = {}  # by agent, which does its tasks one after the other
        trusted, suspects = split_suspects(agents, shipment.work, state.round)
        if self.run.past is not None:  # its trainings take over all open tasks
            trusted, suspects = (*trusted, *suspects), ()
        for submodel in submodels:
            recipe = self.run.method.recipe(state, submodel)
            recipe = replace(recipe, per_class=config.evaluate.per_class)
            able, probes = (
                [
                    a
                    for a in some
                    if can_hold(a, submodel, recipe.batch, config.assign.memory)
                    and not self.run.explain_missing_graphs(a.name, submodel, recipe)
                    and (not recipe.keep or has_trained(history, a.name, submodel))
                ]
                for some in (trusted, suspects)
            )
            suspects = [a for a in suspects if a not in probes]  # one task each
            for agent in (*probes, *able[: config.evaluate.agents or None]):
                chosen.append((agent, submodel, recipe, agent in probes))
                if agent.profile is not None:
                    # without timings, predictions start from measured rounds
                    known = None if agent.profile.timings else history.standings.get(agent.name)
                    weights = find_codec(self.run.choose_weights_codec(agent.name))
                    offer = affordable_submodels.make_offers(
                        agent.profile, [submodel], recipe, 1.0, Codecs(weights, RAW), known
                    )[0]
                    seconds[agent.name] = seconds.get(agent.name, 0.0) + offer.seconds
        waited = {a.name: seconds.get(a.name, 0.0) for a, _, _, probe in chosen if not probe}
        typical = estimate_typical_seconds(self.run.fleet.round, shipment.work, waited.items())
        slowest = max(waited.values(), default=0.0)
        limit = limit_phase(config.fleet.deadline, self.run.patience, slowest, typical)
        planned = []
        for agent, submodel, recipe, probe in chosen:
            codec = self.run.choose_weights_codec(agent.name)
            task = shipment.task(
                agent.name, submodel, recipe, limit, round=state.round, codec=codec
            )
            task = replace(task, since=history.folded.get(agent.name, 0))
            task = self.run.complete_task(task)
            planned.append(Planned(task, seconds.get(agent.name, 0.0), probe))
        return planned

    def _run_phase(
        self, state: State, work: Work, tasks: Sequence[Planned], collector: Collector
    ) -> None:
        """Send tasks and collect their results until the phase closes."""
        if not tasks:
            return
        limit = max((one.task.deadline for one in tasks), default=0.0)
        quorum = sum(not one.probe for one in tasks)
        self.run.fleet.run_phase(
            PhaseBegan(self.run.fleet.clock(), work, state.round, tuple(tasks), limit, quorum),
            collector,
        )


def split_suspects(
    agents: Sequence[Agent], work: Work, round: int
) -> tuple[Sequence[Agent], Sequence[Agent]]:
    """Return the agents to wait for, and the suspects (their last task timed out) to ask as well.
    Agents that sit out this round are in neither, unless no other is left.
    """
    rested = [agent for agent in agents if not agent.explain_rest(work, round)]
    trusted = [agent for agent in rested if not agent.suspect]
    if not trusted:
        return rested or agents, ()
    return trusted, [agent for agent in rested if agent.suspect]


def fit_batch(network: Network) -> int:
    """Return the number of examples that the coordinator evaluates at a time."""
    positions = math.prod(network.inputs) if network.objective in {"next", "masked"} else 1
    return max(1, min(MAX_BATCH, MAX_LOGITS // (network.outputs * positions)))


def replace_statistics(state: State, measured: Mapping[str, torch.Tensor]) -> State:
    """Return the state with these statistics in place of its own."""
    return replace(state, tensors={**drop_statistics(state).tensors, **measured})


def drop_statistics(state: State) -> State:
    """Return the state without batch norm statistics."""
    return replace(
        state,
        tensors={
            home: value for home, value in state.tensors.items() if not home.startswith(STATS)
        },
    )


def has_trained(history: FleetHistory, agent: str, submodel: Submodel) -> bool:
    """Return True if an agent has the parts of a submodel that never leave it."""
    return agent in history.folded and history.assigned[agent].plain == submodel


def can_hold(agent: Agent, submodel: Submodel, batch: int, share: float) -> bool:
    """Return True if a forward pass fits: the weights twice (received and loaded), and the memory
    of a training step of one example, which stands for a batch without gradients.

    batch: examples of a training step. Where that fits, its smaller one need not be counted, which
        takes a pass of the network.
    """
    if agent.profile is None:
        return False
    room = share * agent.profile.memory
    costs = (cost(submodel, examples) for examples in (batch, 1))
    return any(2 * needed.bytes + needed.memory <= room for needed in costs)
