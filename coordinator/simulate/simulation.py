"""What `coordinator simulate` does: the rounds of a fleet, with simulated devices on links in
memory, once per seed.

It is the code of `coordinator start` (rounds, methods, evaluation, store) and the agents' half of
the protocol; only the devices and the broker are simulated. A fleet whose agents are started as
`edge-agent join --name d0 --shard 0/N --partition RULE --seed S` learns the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import filter as filter_names
from pathlib import Path
from typing import Any

import msgspec
import torch

from coordinator.assign.data_cards import AGENTS
from coordinator.observe.readers.terminal import Lines
from coordinator.phases.patience import ENDLESS
from coordinator.run.config_sources import ConfigSources
from coordinator.run.launch import check_same
from coordinator.run.preparation import Prepared, prepare
from coordinator.run.start import RunOptions, run
from coordinator.settings.config import Config, load
from coordinator.simulate import results
from coordinator.simulate.data_source import Source
from coordinator.simulate.data_source import names as devices
from coordinator.simulate.devices import Devices
from coordinator.store.run_folders import list_runs
from coordinator.store.run_records import open_records
from coordinator.store.store import Store
from coordinator.trust.defences import check_buffer_size
from federated.data import partitions
from federated.errors import ConfigError, LinkError, StoreError
from federated.runtime.console import Say
from federated.training import device_memory
from federated.wire.links.memory import MemoryBroker, MemoryLink

__all__ = ["simulate"]


def simulate(
    sources: ConfigSources, runs: Path, out: Path | None, *, resume: bool = False, say: Say
) -> dict[str, Any]:
    """Run an experiment once per seed, and write results and pictures below `out`; return the
    results of all seeds as plain values.

    Raises ConfigError, DataError and Unknown before the first round; StoreError for a run that
    exists and is not to be resumed.
    """
    config = sources.load()
    name = config.name or (sources.file.stem if sources.file else "simulation")
    folder = out or Path("results") / name
    chosen = config.simulate
    if config.data.name == AGENTS:
        raise ConfigError(
            f"data.name = '{AGENTS}' is for a fleet whose devices bring data; a "
            "simulation shares out data that it has"
        )
    if chosen.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: this PyTorch sees no CUDA device")
    seeds, found = chosen.seeds or (config.seed,), []
    check_free(name, seeds, () if resume else list_runs(runs))
    check_buffer_size(config, chosen.agents, "simulate.agents")
    for pattern in unused(config):
        say(
            f"assign.submodels: '{pattern}' fits none of the {chosen.agents} devices, "
            f"which are called {devices(chosen.agents)[0]} and so on"
        )
    for index, seed in enumerate(seeds):
        if len(seeds) > 1:
            say(f"seed {seed}, {index + 1} of {len(seeds)}")
        one = msgspec.structs.replace(
            config,
            name=run_name(name, seed),
            seed=seed,
            fleet=msgspec.structs.replace(config.fleet, min_agents=chosen.agents),
        )
        found.append(simulate_once(one, runs, folder, resume=resume, say=say))
    with writing(folder):
        return results.write_summary(folder, name, found, say)


def run_name(name: str, seed: int) -> str:
    return f"{name}-seed{seed}"


def check_free(name: str, seeds: Sequence[int], taken: Collection[str]) -> None:
    """That no seed would meet a run that is there, found before the first one starts. Raises
    ConfigError, StoreError.
    """
    if len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"simulate.seeds: expected each seed once, found {', '.join(map(str, seeds))}"
        )
    if there := [run for run in (run_name(name, seed) for seed in seeds) if run in taken]:
        raise StoreError(
            f"{', '.join(there)} ran before: go on with --resume, or take another name "
            "with --set name=NAME, or another --runs"
        )


def unused(config: Config) -> list[str]:
    """The pins that fit no simulated device: a slip, or meant for the fleet of the same file."""
    return [
        pattern
        for pattern in config.assign.submodels
        if not filter_names(devices(config.simulate.agents), pattern)
    ]


def simulate_once(
    config: Config, runs: Path, folder: Path, *, resume: bool, say: Say
) -> dict[str, Any]:
    """One seed, from its partition to its results, which it gives as plain values."""
    source = Source.of(config)
    parts = source.parts
    going_on = resume and config.name in list_runs(runs)
    if going_on:
        check_same(stored(runs, config.name), config)
    prepared = prepare(config, runs, resume=going_on)
    try:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            partitions.save(
                folder / f"seed{config.seed}-partition.json",
                source.whole,
                parts,
                config.simulate.partition,
                config.seed,
            )
        say(
            f"run '{config.name}': {config.method_name} on {config.data.name}, "
            f"{source.agents} devices ({config.simulate.partition}), "
            f"{config.rounds} rounds, kept in {runs / config.name}"
        )
        if prepared.store.rounds_done < config.rounds:
            carry_out(prepared, source, say)
        with writing(folder):
            return results.write(folder, config, prepared.store, source, say)
    finally:
        prepared.close(discard=not going_on)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raises StoreError for whatever the file system does not allow."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"the results cannot be written to {folder}: {error}") from error


def stored(runs: Path, name: str) -> Config:
    """The configuration of a run that is there. Raises StoreError."""
    records = open_records(runs, name)
    try:
        return load(None, {}, (), base=records.read_facts().config)
    finally:
        records.close()


def carry_out(prepared: Prepared, source: Source, say: Say) -> None:
    """The rounds. Whatever stops the devices stops the run, and is what is raised."""
    broker = MemoryBroker()
    with emptied(prepared.store.spool / "devices", prepared.store) as spool:
        devices = Devices(broker, prepared.config, source, spool)
        link = MemoryLink(broker, "coordinator")
        try:
            options = RunOptions(
                patience=ENDLESS, device=prepared.config.simulate.device, durable=False
            )
            run(prepared, link, Lines(say).read, devices.begin, options)
        except LinkError:
            if devices.error is None:
                raise
            raise devices.error from None
        finally:
            devices.close()


@contextmanager
def emptied(folder: Path, store: Store) -> Iterator[Path]:
    """A folder for what devices hold, below the run's own. Their memories stay, for when the
    simulation is resumed, with more rounds perhaps.
    """
    for path in folder.glob("*/*"):
        if path.name != device_memory.FOLDER:
            path.unlink()
    yield folder
    since = store.last_folded()
    for device in folder.iterdir():
        device_memory.prune(device / device_memory.FOLDER, since.get(device.name, 0))
        for path in device.iterdir():
            if path.name != device_memory.FOLDER:
                path.unlink()
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    if not any(folder.iterdir()):
        folder.rmdir()
