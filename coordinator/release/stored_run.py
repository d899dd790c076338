"""Load a stored run (its weights, scores and history) as one value, to export it or predict with
it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from coordinator.observe.round_records import Entry, Score
from coordinator.phases.evaluation import assemble
from coordinator.settings.config import Config, read_tables
from coordinator.store.run_folders import DATABASE
from coordinator.store.run_store import Store
from coordinator.store.training_counts import count_at, count_by_round
from export.onnx_export import predict
from export.onnx_session import Array, Output
from federated.errors import ConfigError, DataError, StoreError, Unknown
from federated.method import Method, State
from federated.methods.catalogue import find_method
from models.given_objects import describe_name, is_given, is_missing
from models.submodel import Network, Submodel
from models.submodel_building import initial
from models.user_networks.given_network import return_network

__all__ = [
    "StoredRun",
    "find_submodel",
    "load_stored_run",
    "predict_run",
    "provide_resumed_model",
    "read_run",
    "slice_run",
]


@dataclass(frozen=True)
class PastRound:
    """A finished round.

    round: its number, from 1.
    seconds: its duration.
    bytes_up, bytes_down: from and to the agents.
    entries: the outcome of each agent's task.
    scores: of each submodel after the round.
    """

    round: int
    seconds: float
    bytes_up: int
    bytes_down: int
    entries: Sequence[Entry] = field(repr=False)
    scores: Sequence[Score] = field(repr=False)


@dataclass(frozen=True)
class StoredRun:
    """A run with at least one finished round.

    name: its name.
    folder: its folder.
    config: its settings.
    network: the largest network.
    menu: its submodels, smallest first.
    history: its finished rounds, from the first.
    method: its method.
    state: of the method after the last round.
    """

    name: str
    folder: Path
    config: Config = field(repr=False)
    network: Network
    menu: tuple[Submodel, ...] = field(repr=False)
    history: tuple[PastRound, ...] = field(repr=False)
    method: Method = field(repr=False)
    state: State = field(repr=False)

    @property
    def rounds(self) -> int:
        """The number of finished rounds."""
        return self.state.round

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The method's tensors after the last round, by name: those of the largest network, and
        others with a "/" in their name.
        """
        return self.state.tensors

    @property
    def scores(self) -> Sequence[Score]:
        """The scores of each submodel after the last round."""
        return self.history[-1].scores


def load_stored_run(place: str | Path, runs: Path, model: nn.Module | None = None) -> StoredRun:
    """Return a stored run.

    place: folder of the run, or its name below `runs`.
    model: the module that the run was started with, if that was in another process.
    Raises StoreError for a run that is missing, damaged or without a finished round; ConfigError
    for a module of another structure.
    """
    folder = Path(place)
    if not (folder / DATABASE).exists():
        folder = runs / folder
    try:
        with closing(Store.open(folder.parent, folder.name, read_only=True)) as store:
            return read_run(store, model)
    except sqlite3.DatabaseError as error:
        raise StoreError(
            f"the database of run '{folder.name}' cannot be read: {error}; list the damage with: "
            f"coordinator check {folder.name}"
        ) from error


def read_run(store: Store, model: nn.Module | None = None) -> StoredRun:
    """Return the run of an open store; see `load_stored_run`."""
    name, facts, last = store.folder.name, store.read_facts(), store.read_last()
    config = read_tables(facts.config)
    if last is None or facts.network is None:
        raise StoreError(f"run '{name}' has no finished round: resume it until a round is finished")
    network, method = facts.network, find_method(config.method_name)
    if model is not None:
        provide_resumed_model(name, network.family, model)
    if is_missing(network.family):
        raise ConfigError(
            f"run '{name}': its network is a {describe_name(network.family)} that was passed to a "
            f'Python program: load it in Python with espalier.load_run("{name}", model), where '
            "model is a module made by the same code"
        )
    try:
        tensors = initial(network, config.seed, method.features)
    except ValueError as error:  # the code of the network is not here
        raise ConfigError(f"run '{name}': {error}") from error
    state = method.start(tensors, facts.menu, config.settings)
    state = replace(state, round=last.round, tensors=last.tensors, fleet=last.fleet)
    return StoredRun(
        name,
        store.folder,
        config,
        network,
        facts.menu,
        read_rounds(store),
        method,
        state,
    )


def provide_resumed_model(run: str, name: str, model: nn.Module) -> None:
    """Register the module that a run was started with under the name that the run has for it.
    Raises ConfigError for a module of another structure, or a run that has a named model.
    """
    if not is_given(name):
        raise ConfigError(f"run '{run}': its model is '{name}', so pass no module")
    try:
        return_network(name, model)
    except ValueError as error:
        raise ConfigError(f"run '{run}': {error}") from error


def read_rounds(store: Store) -> tuple[PastRound, ...]:
    """Return the finished rounds."""
    counts = count_by_round(store)
    return tuple(
        PastRound(
            number,
            seconds,
            up,
            down,
            store.read_entries(number),
            count_at(counts, number).mark(store.read_scores(number)),
        )
        for number, seconds, up, down in store.read_history()
    )


def find_submodel(run: StoredRun, name: str) -> Submodel:
    """Return a submodel of a run's menu, without branches. Raises Unknown."""
    known = {submodel.name: submodel.plain for submodel in run.menu}
    if name not in known:
        raise Unknown("submodel", name, known)
    return known[name]


def slice_run(run: StoredRun, name: str) -> nn.Module:
    """Return a submodel with the run's weights and batch norm statistics, in evaluation mode.
    Raises Unknown; ExportError if the coordinator lacks tensors or statistics.
    """
    return assemble(run.state, run.method, find_submodel(run, name))


def predict_run(run: StoredRun, name: str, x: Array) -> Output:
    """Return the outputs of a submodel for raw examples [n, *inputs]. Raises DataError for examples
    of another shape, and what `slice_run` raises.
    """
    examples, wanted = np.asarray(x), run.network.inputs
    if examples.shape[1:] != wanted:
        raise DataError(
            f"x: expected examples of shape [n, {', '.join(map(str, wanted))}], found "
            f"{list(examples.shape)}"
        )
    if examples.dtype == np.float64:
        examples = examples.astype(np.float32)
    return predict(slice_run(run, name), run.network, examples)
