"""Score the networks of a run after the devices fine-tune them, as RecipFL evaluates every method
(Zhang et al., WWW 2024; the authors' code): each device receives its weights once more after the
last round, trains them for one epoch with plain gradient steps, and answers its held-out examples.

The run's configuration must be able to repeat the devices' data: a simulation. Devices of which no
update was folded are left out. Layers that a device keeps for itself are read from the run's
folder.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.analyses.panels import Panel, make_panel
from coordinator.observe.fleet_scores import make_score
from coordinator.release.stored_run import StoredRun, load_stored_run
from coordinator.simulate.device_data import DataSource, name_devices
from coordinator.simulate.device_gains import count_steps, simplify, to_arrays
from coordinator.store.run_store import Store
from federated.data.dataset import Dataset
from federated.device.trainers.catalogue import DEFAULT, open_trainer
from federated.device.trainers.trainer import Start
from federated.errors import ConfigError
from federated.task import Profile
from federated.training import state_between_rounds
from federated.training.training_inputs import Array, Execution, TrainingSet
from models.submodel import Submodel

__all__ = ["analyse", "fine_tune_devices"]

EPOCHS = 1


def analyse(folder: Path) -> list[Panel]:
    """Return the panel `accuracy`, a row for each device."""
    found = fine_tune_devices(folder)
    return [make_panel("accuracy", {(agent, "fine-tuned"): one for agent, one in found.items()})]


def fine_tune_devices(folder: Path) -> dict[str, float]:
    """Return the accuracy of each device after its fine-tuning, by name."""
    run = load_stored_run(folder, folder.parent)
    with closing(Store.open(folder.parent, folder.name, read_only=True)) as store:
        profiles = store.agents.read_profiles()
    surveys = {name: profile.survey for name, profile in profiles.items()}
    run = replace(run, state=replace(run.state, agents=surveys))
    budgets, last = count_steps(run)
    source = DataSource.from_config(run.config)
    names = name_devices(source.agents)
    if not last or not {*last} <= {*names}:
        raise ConfigError(
            f"run '{run.name}': expected a simulation in which devices trained, since the analysis "
            "trains their networks"
        )
    return {
        agent: fine_tune(
            run,
            profiles[agent],
            submodel,
            source.device(names.index(agent)),
            find_own_layers(folder, agent, submodel, max(budgets[agent])),
        )
        for agent, submodel in sorted(last.items())
    }


def find_own_layers(folder: Path, agent: str, submodel: Submodel, trained: int) -> dict[str, Array]:
    """Return the tensors that a device keeps for a submodel. trained: its last round."""
    place = folder / "spool" / "devices" / agent / state_between_rounds.FOLDER
    prefix = f"own/{submodel.plain.name}/"
    return {
        name.removeprefix(prefix): value
        for name, value in state_between_rounds.read(place, trained).items()
        if name.startswith(prefix)
    }


def fine_tune(
    run: StoredRun, profile: Profile, submodel: Submodel, data: Dataset, own: dict[str, Array]
) -> float:
    """Return the accuracy of a device on its held-out examples after one epoch, at the learning
    rate of the last round. own: tensors that it keeps for itself.
    """
    method, rng = run.method, np.random.default_rng(run.config.seed)
    submodel = method.assign(run.state, profile, [submodel], rng)  # some are made for an agent
    received = to_arrays(method.dispatch(run.state, method.place(run.state, submodel))) | own
    recipe = method.recipe(replace(run.state, round=run.rounds - 1), submodel)
    recipe = simplify(recipe, EPOCHS * -(-len(data.x) // recipe.batch))
    trainer = open_trainer(DEFAULT)
    with trainer.load(Start(submodel, recipe, received, run.config.seed)) as network:
        network.train(data, Execution())
        if recipe.norm == "static" and trainer.shapes(submodel).statistics:
            network.calibrate(data.x)
        tallies = network.evaluate(TrainingSet(data.x_held, data.y_held), recipe)
    return make_score(submodel, "devices", tallies["all"]).accuracy
