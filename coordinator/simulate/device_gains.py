"""What each device gained by a run: the federated submodel's accuracy on the device's held-out
data, beside that of the same submodel trained alone on the device's data, and centrally on the data
of all devices.

Data never leave a device, so this works only where the run's configuration states how its devices
divided a data set that this machine has: for simulations and the demo. What each device reported of
its data (sizes and moments) must agree with the part found here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from coordinator.observe.fleet_scores import make_score
from coordinator.phases.evaluation import assemble
from coordinator.release.stored_run import StoredRun, read_run
from coordinator.run.run_preparation import make_weights
from coordinator.settings.config import Config
from coordinator.settings.config_tables import AGENTS
from coordinator.simulate.device_data import DataSource
from coordinator.store.run_store import Store
from federated.data.dataset import Dataset
from federated.data.loading import take_part
from federated.data.partitions import seed_generator
from federated.device.trainers.catalogue import DEFAULT, open_trainer
from federated.device.trainers.trainer import Start, Trainer, uses_graphs
from federated.errors import ConfigError, ExportError
from federated.method import State
from federated.task import Profile, Recipe
from federated.training.training_inputs import Array, Diverged, Execution, TrainingSet
from models.submodel import Submodel

__all__ = ["Comparison", "compare_run"]

Progress = Callable[[int], None]
"""A function that is called after each training step, with the number of planned steps."""

Budget = Mapping[int, int]
"""Optimiser steps by round."""


@dataclass(frozen=True)
class Comparison:
    """The accuracies of one submodel on the held-out data of one device.

    agent: name of the device.
    submodel: that it trained last, by name without branches.
    examples: number of its training examples.
    held_out: number of its held-out examples.
    steps: of its updates that were folded, which are the budget of `alone`.
    federated: with the run's weights; None if the coordinator lacks a part of them.
    alone: trained on the device's data; None if the training diverged.
    central: trained on the data of all devices; None if the training diverged.
    """

    agent: str
    submodel: str
    examples: int
    held_out: int
    steps: int
    federated: float | None
    alone: float | None
    central: float | None


def compare_run(store: Store, progress: Progress) -> list[Comparison]:
    """Train each device's submodel alone and centrally, and return the accuracies of each device of
    which an update was folded.

    Alone it takes the steps of the device's updates, centrally those of all devices together, round
    by round with the optimiser and learning rate of the run. The method's own terms (hooks,
    corrections, frozen weights, masked losses) are left out.
    Raises StoreError, ConfigError for data that are not here, and what loading them raises.
    """
    run = read_run(store)
    budgets, last = count_steps(run)
    data = load_devices(run.config, store.agents.read_profiles(), budgets)
    baseline = Baseline.of_run(run, progress, budgets, last)
    pooled = pool(list(data.values()))
    together: dict[int, int] = {}
    for budget in budgets.values():
        for number, steps in budget.items():
            together[number] = together.get(number, 0) + steps
    central = {one: baseline.train("", one, pooled, together) for one in baseline.submodels}
    found = []
    for agent, own in data.items():
        submodel = last[agent]
        alone = baseline.train(agent, submodel, own, budgets[agent])
        found.append(
            Comparison(
                agent,
                submodel.name,
                len(own.y),
                len(own.y_held),
                sum(budgets[agent].values()),
                find_federated(run, agent, submodel, own, baseline),
                baseline.score(submodel, alone, own, own.x),
                baseline.score(submodel, central[submodel], own, pooled.x),
            )
        )
    return found


def count_steps(run: StoredRun) -> tuple[dict[str, dict[int, int]], dict[str, Submodel]]:
    """Return the steps of each agent's folded updates by round of their task, and the submodel of
    the last one.
    """
    by_name = {submodel.name: submodel.plain for submodel in run.menu}
    budgets: dict[str, dict[int, int]] = {}
    last: dict[str, Submodel] = {}
    for past in run.history:
        for entry in past.entries:
            if entry.outcome == "folded" and entry.steps:
                budgets.setdefault(entry.agent, {})[entry.task or past.round] = entry.steps
                last[entry.agent] = by_name[entry.submodel.partition("@")[0]]
    return dict(sorted(budgets.items())), last


def load_devices(
    config: Config, profiles: Mapping[str, Profile], agents: Sequence[str] | Mapping[str, Budget]
) -> dict[str, Dataset]:
    """Return the data that these agents had, by name. Raises ConfigError if the configuration does
    not state them, or if they differ from what an agent reported; DataError.
    """
    remedy = "leave out --compare"
    if config.data.name == AGENTS:
        raise ConfigError(
            "--compare trains on the devices' data, and these devices have data of their own, "
            f"which never leave them: {remedy}"
        )
    source = DataSource.from_config(config)
    return {agent: find_part(source, profiles[agent]) for agent in agents if agent in profiles}


def find_part(source: DataSource, profile: Profile) -> Dataset:
    """Return the part of the data that a device reported: the one with the same sizes and moments.
    Raises ConfigError if there is none.
    """
    agent, reported = profile.agent, profile.data
    size = reported.examples + reported.held_out
    for part in source.parts:
        if len(part) == size:
            data = take_part(source.whole, part, name=agent, held=source.held)
            if data.card() == reported:
                return data
    raise ConfigError(
        f"--compare trains on the devices' data, and those of agent '{agent}' are not here: no "
        f"part of {source.data} divided by simulate.partition = '{source.partition}' over "
        f"simulate.agents = {source.agents} with seed {source.seed} agrees with the {size} "
        "examples that it reported: leave out --compare; in the next run, set simulate.agents to "
        "the number of shards, and partition and seed as in the flags of the agents"
    )


def pool(parts: Sequence[Dataset]) -> TrainingSet:
    """Return the training examples of all devices together."""
    labels = sorted({label for part in parts for label in part.labels})
    return TrainingSet(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        labels,
    )


@dataclass
class Baseline:
    """Plain training with the optimiser and the learning rates of a run.

    run: the run.
    start: its state before the first round.
    trainer: that trains.
    submodels: those that some device trained last.
    step: called after each training step.
    """

    run: StoredRun
    start: State
    trainer: Trainer
    submodels: Sequence[Submodel]
    step: Callable[[], None]

    @classmethod
    def of_run(
        cls,
        run: StoredRun,
        progress: Progress,
        budgets: Mapping[str, Budget],
        last: Mapping[str, Submodel],
    ) -> Baseline:
        config, steps = run.config, sum(sum(one.values()) for one in budgets.values())
        weights = make_weights(config, run.network, run.method)
        submodels = list(dict.fromkeys(last.values()))
        planned = steps * (1 + len(submodels))
        trainer = open_trainer(config.simulate.trainer, config.simulate.device)
        if uses_graphs(trainer):  # which needs the graphs of a run
            trainer = open_trainer(DEFAULT)
        trainer.use_threads(1)  # as simulated devices do
        return cls(
            run,
            run.method.start(weights, run.menu, config.settings),
            trainer,
            submodels,
            lambda: progress(planned),
        )

    def train(
        self, agent: str, submodel: Submodel, data: Dataset | TrainingSet, budget: Budget
    ) -> Mapping[str, Array] | None:
        """Return the tensors of a submodel after a training; None if it diverged. agent: name that
        the order of examples depends on.
        """
        method, watch = self.run.method, Execution(on_step=lambda *_: self.step())
        tensors = to_arrays(method.dispatch(self.start, method.place(self.start, submodel)))
        for number, steps in sorted(budget.items()):
            recipe = simplify(self._find_recipe(number, submodel), steps)
            seed = int(seed_generator(str(recipe.seed), str(number), agent).integers(2**63))
            with self.trainer.load(Start(submodel, recipe, tensors, seed, number)) as network:
                try:
                    tensors = dict(network.train(data, watch).tensors)
                except Diverged:
                    return None
        return tensors

    def score(
        self, submodel: Submodel, tensors: Mapping[str, Array] | None, own: Dataset, seen: Array
    ) -> float | None:
        """Return the accuracy on a device's held-out examples; None without tensors. seen: the
        examples that measure the statistics of batch norm.
        """
        if tensors is None:
            return None
        recipe = simplify(self._find_recipe(self.run.rounds, submodel), 1)
        with self.trainer.load(Start(submodel, recipe, tensors, 0)) as network:
            if recipe.norm == "static" and self.trainer.shapes(submodel).statistics:
                network.calibrate(seen)
            held = TrainingSet(own.x_held, own.y_held)
            tallies = network.evaluate(held, recipe)
        return make_score(submodel, "devices", tallies["all"]).accuracy

    def _find_recipe(self, number: int, submodel: Submodel) -> Recipe:
        """Return the recipe of a round, which has the learning rate of its schedule."""
        return self.run.method.recipe(replace(self.start, round=number - 1), submodel)


def simplify(recipe: Recipe, steps: int) -> Recipe:
    """Return the recipe of a plain training of this number of steps: without the terms of a method,
    and without what only a coordinator reads.
    """
    return replace(
        recipe,
        epochs=steps,
        steps=steps,
        masked=False,
        labels=False,
        scores=False,
        per_class=False,
        pull=0.0,
        variate="",
        apart=False,
        keep=(),
        frozen=(),
        hook="",
        options={},
    )


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Return the network's own tensors as arrays."""
    return {name: value.numpy() for name, value in tensors.items() if "/" not in name}


def find_federated(
    run: StoredRun, agent: str, submodel: Submodel, own: Dataset, baseline: Baseline
) -> float | None:
    """Return the accuracy that a device reported after the last round, or else compute it; None if
    the coordinator lacks a part of the weights.
    """
    for score in run.scores:
        if (score.agent, score.submodel, score.view) == (agent, submodel.name, "devices"):
            return score.accuracy
    try:
        state = assemble(run.state, run.method, submodel).state_dict()
    except ExportError:
        return None
    tensors = to_arrays(state)
    recipe = simplify(run.method.recipe(run.state, submodel), 1)
    with baseline.trainer.load(Start(submodel, recipe, tensors, 0)) as network:
        tallies = network.evaluate(TrainingSet(own.x_held, own.y_held), recipe)
    return make_score(submodel, "devices", tallies["all"]).accuracy
