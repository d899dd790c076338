"""Run experiments with simulated devices. `simulate`, the command `coordinator simulate`, runs an
experiment once per seed and writes results; `simulate_run` runs it once, for Python programs.

They execute the code of `coordinator start` (rounds, methods, evaluation, store) and the agents'
half of the protocol; only devices and broker are simulated. A fleet of agents started as
`edge-agent join --name d0 --shard 0/N --partition RULE --seed S` learns the same weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import filter as filter_names
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import torch

from coordinator.observe.event_readers.terminal_output import LinePrinter
from coordinator.observe.events import Publish
from coordinator.phases.run_context import ENDLESS
from coordinator.run.config_sources import ConfigSources
from coordinator.run.launch import suggest_resume
from coordinator.run.run_preparation import Prepared, prepare
from coordinator.run.runner import RunOptions, run
from coordinator.run.stored_configuration import check_same, load_named, load_stored
from coordinator.settings.config import Config
from coordinator.settings.config_tables import AGENTS
from coordinator.simulate import results
from coordinator.simulate.device_data import DataSource, name_devices
from coordinator.simulate.local_transfers import LocalTransfers
from coordinator.simulate.malicious_devices import name_malicious
from coordinator.simulate.simulated_devices import Devices, ServingLink
from coordinator.simulate.worker_selection import open_workers
from coordinator.simulate.workers import OwnThread, Workers
from coordinator.store.run_folders import list_runs
from coordinator.store.run_store import Store
from coordinator.trust.configured_defences import check_buffer_size
from federated.data import partitions
from federated.device.agent_run_files import GRAPH
from federated.device.attacks.known_attacks import parse_attack
from federated.device.trainers.catalogue import open_trainer
from federated.errors import (
    ConfigError,
    FleetError,
    LinkError,
    StoreError,
    explain_os_errors,
    read_setting,
)
from federated.flag_and_argument_names import RESUME, RUNS, Option
from federated.runtime.console import Say
from federated.runtime.unit_formatting import format_count
from federated.training import state_between_rounds
from federated.wire.links.memory import MemoryBroker, MemoryLink

__all__ = ["simulate", "simulate_run"]


def simulate(
    sources: ConfigSources, runs: Path, out: Path | None, *, resume: bool = False, say: Say
) -> dict[str, Any]:
    """Run an experiment once per seed, and write results and plots below `out`; return the
    results of all seeds as plain values.

    Raises ConfigError, DataError and Unknown before the first round; StoreError if a run or
    results in the default folder exist and `resume` is not set.
    """
    config = sources.load()
    name = config.name or (sources.file.stem if sources.file else "simulation")
    folder = out or Path("results") / name
    settings = config.simulate
    seeds, found = settings.seeds or (config.seed,), []
    if len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"simulate.seeds: expected each seed once, found {', '.join(map(str, seeds))}"
        )
    names = {seed: f"{name}-seed{seed}" for seed in seeds}
    check_settings(config, names, () if resume else list_runs(runs))
    if out is None and not resume and (folder / "summary.json").exists():
        raise StoreError(
            f"{folder} has the results of another experiment named '{name}': choose another name "
            "(--set name=NAME) or another folder (--out)"
        )
    devices = name_devices(settings.agents)
    for pattern in config.assign.submodels:  # it may be meant for a fleet with the same file
        if not filter_names(devices, pattern):
            say(
                f"assign.submodels: '{pattern}' matches none of the {len(devices)} devices, "
                f"which are named {devices[0]} and so on"
            )
    for index, seed in enumerate(seeds):
        if len(seeds) > 1:
            say(f"seed {seed}, {index + 1} of {len(seeds)}")
        fleet = msgspec.structs.replace(config.fleet, min_agents=settings.agents)
        one = msgspec.structs.replace(config, name=names[seed], seed=seed, fleet=fleet)
        with suggest_resume(runs, names.values(), "resume with --resume"):
            found.append(simulate_once(one, runs, folder, resume=resume, say=say))
    with writing(folder):
        return results.write_summary(folder, name, found, say)


def check_settings(config: Config, names: Mapping[int, str], taken: Collection[str]) -> None:
    """Check the settings of a simulation. names: seed -> name of its run. taken: names of runs that
    exist. Raises ConfigError, Unknown, StoreError.
    """
    with read_setting():
        partitions.parse(config.simulate.partition)
        parse_attack(config.simulate.attack)
    if config.data.name == AGENTS:
        raise ConfigError(
            f"data.name = '{AGENTS}' is for devices with data of their own: a simulation needs a "
            "data set to divide among devices, such as data.name = 'digits'"
        )
    if config.simulate.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("simulate.device = 'cuda': PyTorch finds no CUDA device; use 'cpu'")
    open_trainer(config.simulate.trainer, config.simulate.device)  # raises for an unusable one
    if existing := [name for name in names.values() if name in taken]:
        name = Option("--set name=NAME", "name=NAME")  # the command has no flag for it
        raise StoreError.naming(
            lambda spell: (
                f"runs that already exist: {', '.join(existing)}; resume them "
                f"({spell(RESUME)}), or choose another name ({spell(name)}) or another folder of "
                f"runs ({spell(RUNS)})"
            )
        )
    check_buffer_size(config, config.simulate.agents, "simulate.agents")


def simulate_once(
    config: Config, runs: Path, folder: Path, *, resume: bool, say: Say
) -> dict[str, Any]:
    """Run one seed, and write its results; return them as plain values."""
    resume = resume and config.name in list_runs(runs)
    if resume:
        check_same(load_stored(runs, config.name), config)
    with prepare_devices(config, runs, resume=resume) as (prepared, source):
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            path, rule = folder / f"seed{config.seed}-partition.json", config.simulate.partition
            partitions.save(path, source.whole, source.parts, rule, config.seed)
        say(
            f"run '{config.name}': {config.method_name} on {config.data.name}, "
            f"{format_count(source.agents, 'device')} ({config.simulate.partition}), "
            f"{format_count(config.rounds, 'round')}, stored in {runs / config.name}"
        )
        if malicious := name_malicious(config):
            say(f"malicious devices ({config.simulate.attack}): {', '.join(malicious)}")
        if prepared.store.rounds_done < config.rounds:
            with open_device_folder(prepared.store) as spool:
                run_with_workers(prepared, source, LinePrinter(say).read, spool)
        if not prepared.store.read_last_folded():
            raise FleetError(
                f"run '{config.name}': no update of a device was accepted in "
                f"{format_count(config.rounds, 'round')}: coordinator log {config.name} shows why"
            )
        with writing(folder):
            return results.write(folder, config, prepared.store, source, say)


@contextmanager
def prepare_devices(
    config: Config, runs: Path, *, resume: bool
) -> Iterator[tuple[Prepared, DataSource]]:
    """Prepare a run and the data of its devices, and close the run afterwards. Raises what
    `prepare` raises, DataError.
    """
    source = DataSource.from_config(config)
    _ = source.parts  # raises before the run's folder exists
    prepared = prepare(config, runs, resume=resume)
    try:
        yield prepared, source
    finally:
        prepared.close(discard=not resume)


def simulate_run(
    sources: ConfigSources, runs: Path, here: Event | None, read: Publish, *, resume: bool
) -> None:
    """Run one experiment, and write nothing but the run's folder.

    here: train in this thread, until it is set; None: in worker processes.
    read: reader of the run's events.
    Raises ConfigError, DataError, Unknown and StoreError before the first event.
    """
    config = load_named(sources, runs, resume=resume)
    if config.simulate.seeds:
        raise ConfigError("simulate.seeds: espalier.run starts a single run: set seed instead")
    fleet = msgspec.structs.replace(config.fleet, min_agents=config.simulate.agents)
    config = msgspec.structs.replace(config, fleet=fleet)
    check_settings(config, {config.seed: config.name}, () if resume else list_runs(runs))
    with prepare_devices(config, runs, resume=resume) as (prepared, source):
        if prepared.store.rounds_done >= config.rounds:
            return
        with open_device_folder(prepared.store) as spool:
            if here is None:
                run_with_workers(prepared, source, read, spool)
            else:
                run_in_thread(prepared, source, read, spool, OwnThread(source, config, here))


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise ConfigError for errors of the file system."""
    remedy = "choose another folder with --out"
    with explain_os_errors(ConfigError, f"cannot write results to {folder}", remedy=remedy):
        yield


def run_with_workers(prepared: Prepared, source: DataSource, read: Publish, folder: Path) -> None:
    """Execute the run with simulated devices, which train in workers. An error that stops
    the devices is raised. folder: of the devices' files.
    """
    broker, config = MemoryBroker(), prepared.config
    devices = Devices(broker, config, source, open_workers(source, config))
    link = MemoryLink(broker, "coordinator")
    try:
        begin = partial(devices.begin, folder=folder)
        run(prepared, link, read, begin, make_options(prepared, devices))
    except LinkError:
        if devices.error is None:
            raise
        raise devices.error from None
    finally:
        devices.close()


def run_in_thread(
    prepared: Prepared, source: DataSource, read: Publish, folder: Path, workers: Workers
) -> None:
    """Execute the run with simulated devices, all in this thread. folder: of the devices' files."""
    broker, config = MemoryBroker(), prepared.config
    devices = Devices(broker, config, source, workers)
    link = ServingLink(broker, "coordinator", devices.turn)
    try:
        run(
            prepared,
            link,
            read,
            lambda fleet: devices.join(fleet.run, folder),
            make_options(prepared, devices),
        )
    finally:
        devices.close()


def make_options(prepared: Prepared, devices: Devices) -> RunOptions:
    urls = LocalTransfers(prepared.store.spool, devices.weights)
    device = prepared.config.simulate.device
    return RunOptions(patience=ENDLESS, device=device, durable=False, urls=urls)


@contextmanager
def open_device_folder(store: Store) -> Iterator[Path]:
    """Provide the folder of the devices' files. Only their memories stay, for a simulation that is
    resumed, perhaps with more rounds.
    """
    folder = store.spool / "devices"
    remove_files(folder)
    yield folder
    for graph in store.spool.glob(f"*{GRAPH}"):  # copied beside weights
        graph.unlink()
    since = store.read_last_folded()
    for device in folder.iterdir():
        state_between_rounds.prune(device / state_between_rounds.FOLDER, since.get(device.name, 0))
    remove_files(folder)
    for path in (*sorted(folder.rglob("*"), reverse=True), folder):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def remove_files(folder: Path) -> None:
    """Remove the files of devices, except their memories."""
    for path in folder.glob("*/*"):
        if path.name != state_between_rounds.FOLDER:
            path.unlink()
