"""Run the cells of a table one after another, and log each one that is finished."""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.analyses.fine_tuning import fine_tune_devices
from benchmarks.analyses.named_analyses import measure
from benchmarks.reproduction.experiment import CENTRAL, WITHIN, Cell
from benchmarks.reproduction.flower import BY_FLOWER, find_obstacle, run_flower
from benchmarks.reproduction.run_costs import Progress, read_costs, read_progress
from coordinator.assign.majority_network import build_network
from coordinator.run.config_sources import ConfigSources
from coordinator.settings.config import Config, load
from coordinator.simulate.device_data import name_devices
from coordinator.simulate.malicious_devices import name_malicious
from coordinator.simulate.simulation import simulate
from federated.data import loading
from federated.errors import ConfigError, EspalierError
from federated.methods.catalogue import find_method
from federated.runtime.console import Say
from federated.runtime.provenance import commit
from federated.task import Card
from models.submodel import Submodel

FINE_TUNED = "fine-tuned"  # view of `benchmarks.analyses.fine_tuning`

__all__ = ["Finished", "Place", "assign_groups", "run_cells"]


class Finished(msgspec.Struct, frozen=True):
    """A finished cell, one line of the log.

    row, column, seed: of the cell.
    settings, groups: of the cell, as its experiment states them.
    scores: summary of the run (see `docs/simulation.md`), scores of groups and of analyses, and
        costs.
    seconds: duration of the simulation.
    commit: of the code that ran it.
    progress: scores and costs after each evaluation; empty in logs of earlier versions.
    """

    row: str
    column: str
    seed: int
    settings: dict[str, Any]
    groups: list[float]
    scores: dict[str, float]
    seconds: float
    commit: str
    progress: list[Progress] = []

    def belongs_to(self, cell: Cell) -> bool:
        mine = (self.row, self.column, self.seed, self.settings, tuple(self.groups))
        its = (cell.row.name, cell.column.name, cell.seed, cell.settings, cell.groups)
        return mine == its

    def equals(self, cell: Cell) -> bool:
        """Whether it is the simulation of a cell by another name, with all of its scores."""
        mine = (self.seed, self.settings, tuple(self.groups), self.row.endswith(BY_FLOWER))
        its = (cell.seed, cell.settings, cell.groups, cell.row.flower)
        return mine == its and all(map(self.has, cell.experiment.scores.values()))

    def has(self, score: str) -> bool:
        """Whether it has a score of a table."""
        return bool(self.progress) if WITHIN in score else score in self.scores


@dataclass(frozen=True)
class Place:
    """Where cells run.

    log: file of finished cells.
    settings: keys and values of this machine, such as `simulate.device`; the log has none of them.
    data: name of a data set -> file or folder to read instead.
    """

    log: Path
    settings: Sequence[tuple[str, Any]] = ()
    data: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Folder of the runs and their results."""
        return self.log.with_suffix("")


def read_log(log: Path) -> list[Finished]:
    """Return the cells that earlier calls finished, and remove a last line that was cut off.
    Raises ConfigError for a line that is not a finished cell.
    """
    if not log.exists():
        return []
    whole, _, torn = log.read_bytes().rpartition(b"\n")
    try:
        found = [msgspec.json.decode(line, type=Finished) for line in whole.splitlines()]
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"--log {log}: expected a file that this command wrote: {error}; choose another file"
        ) from error
    if torn:
        os.truncate(log, len(whole) + 1 if whole else 0)
    return found


def run_cells(cells: Sequence[Cell], place: Place, say: Say) -> Iterator[Finished]:
    """Yield the cells that are finished: those in the log, and then each other one after its
    simulation, unless a log in the same folder has it by another name. A cell that fails is
    reported, and a later call runs it again.
    """
    logged = read_log(place.log)
    for cell in cells:
        yield from (one for one in logged if one.belongs_to(cell))
    left = [cell for cell in cells if not any(one.belongs_to(cell) for one in logged)]
    for number, cell in enumerate(left, 1):
        try:
            if same := find_equal(cell, place.log.parent):
                say(f"{cell.title}: the same simulation as that of '{same.row}' {same.column}")
                found = msgspec.structs.replace(same, row=cell.row.name, column=cell.column.name)
            else:
                say(f"{cell.title}: simulation {number} of {len(left)}")
                found = run_cell(cell, place, say)
        except EspalierError as error:
            say(f"{cell.title}: failed: {error}")
            continue
        with place.log.open("ab") as file:
            file.write(msgspec.json.encode(found) + b"\n")
        yield found


def find_equal(cell: Cell, folder: Path) -> Finished | None:
    """Return the finished simulation of a cell from the logs of a folder, None without one."""
    for path in sorted(folder.glob("*.jsonl")):
        with contextlib.suppress(msgspec.DecodeError):  # not a log, or a table that is running
            for line in path.read_bytes().splitlines():
                found = msgspec.json.decode(line, type=Finished)
                if found.equals(cell):
                    return found
    return None


def run_cell(cell: Cell, place: Place, say: Say) -> Finished:
    """Simulate a cell, or resume its interrupted simulation. Raises what `simulate` raises, and
    EspalierError for a cell that Flower cannot run.
    """
    flags = [*cell.settings.items(), *place.settings, ("name", cell.run), ("seed", cell.seed)]
    config = load(None, os.environ, flags)
    if config.data.name in place.data:
        flags.append(("data.name", place.data[config.data.name]))
        config = load(None, os.environ, flags)
    if cell.groups:
        flags.append(("assign.submodels", pin_groups(cell, config)))
    start, runs, out = time.perf_counter(), place.folder / "runs", place.folder / cell.run
    if cell.row.flower:
        if why := find_obstacle(config):
            raise ConfigError(f"Flower cannot run it: {why}")
        return finish(cell, run_flower(flags), start)
    made = simulate(ConfigSources(None, os.environ, flags=flags), runs, out, resume=True, say=say)
    [summary] = made["per_seed"].values()
    run = runs / f"{cell.run}-seed{cell.seed}"
    scores = (
        summary | read_costs(out / f"seed{cell.seed}.json") | find_scores(cell, config, out, run)
    )
    shutil.rmtree(run)  # its weights; the results stay
    progress = read_progress(out / f"seed{cell.seed}.json")
    return msgspec.structs.replace(finish(cell, scores, start), progress=progress)


def finish(cell: Cell, scores: dict[str, float], start: float) -> Finished:
    """Return the line of a cell. start: when it began."""
    return Finished(
        cell.row.name,
        cell.column.name,
        cell.seed,
        cell.settings,
        list(cell.groups),
        scores,
        round(time.perf_counter() - start, 1),
        commit(),
    )


def find_scores(cell: Cell, config: Config, out: Path, run: Path) -> dict[str, float]:
    """Return the scores of groups and of analyses that the experiment names.

    out: folder of the results. run: folder of the run.
    """
    members, found = assign_groups(config.simulate.agents, cell.groups), dict[str, float]()
    tuned = cache(lambda: fine_tune_devices(run))
    for score in cell.experiment.scores.values():
        if ":" in score:
            found[score] = measure(score, run)
        elif "/" in score:
            view, group, *metric = score.split("/")
            values = (
                tuned()
                if view == FINE_TUNED
                else read_scores(out / f"seed{cell.seed}.csv", view, *metric)
            )
            # the device of central training belongs to each group
            those = [int(group or 0)] if cell.row is CENTRAL else members
            found[score] = average_group(values, those, score)
    return found


def assign_groups(devices: int, groups: Sequence[float]) -> list[int]:
    """Return the group of each device, for groups of these relative sizes."""
    ends = [sum(groups[: index + 1]) / sum(groups) for index in range(len(groups))]
    return [
        next(g for g, end in enumerate(ends) if (device + 0.5) / devices <= end)
        for device in range(devices)
        if groups
    ]


def pin_groups(cell: Cell, config: Config) -> dict[str, str]:
    """Return the submodel of each device: each group has another one of the method's menu, and
    malicious devices have the largest.
    """
    menu, last = propose_menu(config), max(1, len(cell.groups) - 1)
    names = [menu[round(g * (len(menu) - 1) / last)].name for g in range(len(cell.groups))]
    if cell.experiment.largest_first:
        names.reverse()
    devices = name_devices(config.simulate.agents)
    groups = assign_groups(len(devices), cell.groups)
    pins = {device: names[group] for device, group in zip(devices, groups, strict=True)}
    return pins | dict.fromkeys(name_malicious(config), menu[-1].name)


def propose_menu(config: Config) -> tuple[Submodel, ...]:
    """Return the submodels of the configuration's method, smallest first."""
    network = build_network(config, [read_card(config.data.name, config.data.root)])
    return find_method(config.method_name).menu(network, config.settings)


@cache  # reading a data set takes seconds
def read_card(name: str, root: str | None) -> Card:
    return loading.load_central(name, root).card()


def read_scores(path: Path, view: str, metric: str = "accuracy") -> dict[str, float]:
    """Return the latest score of each device in a view. path: file of scores of one seed."""
    with path.open(newline="") as file:
        return {
            line["agent"]: float(line[metric])
            for line in csv.DictReader(file)
            if line["view"] == view
        }


def average_group(values: Mapping[str, float], members: Sequence[int], score: str) -> float:
    """Return the mean of the values of a group's devices.

    values: by device.
    members: group of each device.
    score: VIEW/GROUP or VIEW/GROUP/METRIC; an empty GROUP is that of all devices.
    """
    group = score.split("/")[1]
    names = name_devices(len(members))
    mine = [
        values[name]
        for name, one in zip(names, members, strict=True)
        if group in ("", str(one)) and name in values
    ]
    if not mine:
        raise ConfigError(f"no device has the score '{score}': set evaluate.local, or other groups")
    return statistics.fmean(mine)
