"""Recompute a finished run in one process: make the updates that its record lists again, fold them
in the recorded order, and check that the final model is equal bit for bit.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.raw_agents.updates import encode, learn, make_update
from coordinator.assign.selection import make_generator
from coordinator.fleet.submodel_shipment import to_torch
from coordinator.observe.round_records import Entry
from coordinator.phases.training import complete_recipe
from coordinator.run.run_preparation import make_weights
from coordinator.settings.config import Config, load
from coordinator.store.run_store import Store
from federated.engine.aggregate import Total, fold
from federated.engine.late_updates import Base, Touched, find_touched, make_buffered
from federated.errors import StoreError
from federated.method import Method, State
from federated.methods.catalogue import find_method
from federated.task import Task, Update
from federated.wire.codecs.catalogue import find_codec
from federated.wire.codecs.codec import decode_update, encode_update
from models.submodel import Submodel

__all__ = ["Make", "ReplayResult", "read_durations", "replay"]

Array = NDArray[Any]
Make = Callable[[Task, Mapping[str, Array]], Update]
"""Function from a task and its weights to an update."""


@dataclass(frozen=True)
class ReplayResult:
    """Comparison of a run's record with its repetition.

    folded: agents by round, in the order of the folds
    doubled: agents or positions that occur twice in a round
    foreign: updates that differ from what the agent must have sent
    equal: True if the last model equals, bit for bit, that of an undisturbed run with the same
        updates
    """

    folded: dict[int, list[str]]
    doubled: int
    foreign: int
    equal: bool


def replay(runs: Path, name: str, attempts: int = 0, make: Make | None = None) -> ReplayResult:
    """Fold again what a run folded, with a method that needs nothing from the fleet.

    attempts: number of coordinators that the run had, to check every digest; 0: no check
    make: makes the update of a task; None: as a raw agent
    StoreError: there is no such run
    """
    torch.set_num_threads(1)
    with closing(Store.open(runs, name, read_only=True)) as store:
        facts, last = store.read_facts(), store.read_last()
        if last is None or facts.network is None:
            raise StoreError(f"run '{name}' finished no round")
        config = load(None, {}, [], facts.config)
        method = find_method(config.method_name)
        state = method.start(
            make_weights(config, facts.network, method), facts.menu, config.settings
        )
        menu = {submodel.name: submodel for submodel in facts.menu}
        folded, doubled, foreign = dict[int, list[str]](), 0, 0
        states, touched = [state], list[Touched]()
        late = (
            make_buffered(
                method, lambda number, now: Base(states[number], tuple(touched[number:now]))
            )
            if "buffered" in method.allows
            else method
        )
        method = late if config.fleet.mode == "buffered" or config.fleet.late == "take" else method
        devices = Devices(method, config, menu, attempts, make or make_raw_update)
        for number in range(1, last.round + 1):
            entries = sorted(
                (entry for entry in store.read_entries(number) if entry.outcome == "folded"),
                key=lambda entry: entry.position,
            )
            folded[number] = [entry.agent for entry in entries]
            updates = {(entry.agent, entry.task) for entry in entries}
            doubled += 2 * len(entries) - len(updates) - len({entry.position for entry in entries})
            total, odd = fold_again(devices, states, entries)
            foreign += odd
            after = (
                method.finish(state, total, make_generator(config.seed, 3, number))
                if total.seen
                else state
            )
            state = replace(after, round=number)
            states.append(state)
            touched.append(find_touched(total, state.tensors))
        return ReplayResult(
            folded,
            doubled,
            foreign,
            all(torch.equal(value, last.tensors[home]) for home, value in state.tensors.items()),
        )


def read_durations(runs: Path, name: str) -> list[float]:
    """Return the seconds of each finished round; empty if there is no such run yet."""
    with (
        suppress(StoreError),
        closing(Store.open(runs, name, read_only=True)) as store,
    ):
        return [seconds for _, seconds, *_ in store.read_history()]
    return []


@dataclass(frozen=True)
class Devices:
    """Repetition of the devices of a run.

    method, config: of the run
    menu: its submodels by name
    attempts: most attempts of each task; 0 skips the comparison of digests
    make: makes the update of a task
    """

    method: Method
    config: Config
    menu: Mapping[str, Submodel]
    attempts: int
    make: Make


def fold_again(
    devices: Devices, states: Sequence[State], entries: Sequence[Entry]
) -> tuple[Total, int]:
    """Return the total of a round, and the number of its updates that match no attempt.

    states: after each round so far
    """
    method, config = devices.method, devices.config
    total, foreign = Total(), 0
    for entry in entries:
        submodel, number = devices.menu[entry.submodel], entry.task or len(states)
        sent = states[number - 1]
        plan = method.place(sent, submodel)
        recipe = complete_recipe(method.recipe(sent, submodel), config)
        weights = {name: np.asarray(value) for name, value in method.dispatch(sent, plan).items()}
        task = Task(
            config.name,
            number,
            1,
            entry.agent,
            "train",
            submodel,
            f"r{number - 1}",
            "",
            0,
            recipe,
            60.0,
        )
        update = devices.make(task, weights)
        made = [
            encode(replace(update, attempt=attempt, tensors={}), update.tensors)
            for attempt in range(1, devices.attempts + 1)
        ]
        foreign += devices.attempts > 0 and entry.digest not in {
            hashlib.sha256(data).hexdigest() for data in made
        }
        codec = find_codec(config.wire.codec)
        encoded = b"".join(encode_update(update, codec, weights))
        received = decode_update(encoded, codec, sys.maxsize, weights)
        plan = method.place(states[-1], submodel)
        fold(total, method.parts(states[-1], plan, to_torch(received)), (entry.agent, number))
    return total, foreign


def make_raw_update(task: Task, weights: Mapping[str, Array]) -> Update:
    """Return the update of a raw agent."""
    update = make_update(
        task.run, task.round, task.attempt, task.agent, task.submodel, task.version
    )
    return replace(update, tensors=learn(weights, task.agent, task.round))
