"""What `coordinator simulate` does: the rounds of a fleet, with simulated devices on links in memory, once per seed.

It is the code of `coordinator start` (rounds, methods, evaluation, store) and the agents' half of the protocol; only the devices and the
broker are simulated. A fleet whose agents are started as `edge-agent join --name d0 --shard 0/N --partition RULE --seed S` learns the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from coordinator import results
from coordinator.command import check_same
from coordinator.config import Config, load, parse_setting
from coordinator.devices import Devices
from coordinator.progress import Lines, Say
from coordinator.source import Source
from coordinator.start import AGENTS, Prepared, prepare, run
from coordinator.store import Store, names
from federated.data import partitions
from federated.errors import ConfigError, LinkError, StoreError
from federated.wire.memory import MemoryBroker, MemoryLink

__all__ = ["simulate"]

PATIENCE = 1e9  # a simulated device may wait for a worker as long as it takes


def simulate(
    file: Path,
    environment: Mapping[str, str],
    settings: Sequence[str],
    flags: Sequence[tuple[str, Any]],
    runs: Path,
    out: Path | None,
    *,
    resume: bool,
    say: Say,
) -> dict[str, Any]:
    """Runs the experiment of a file once per seed, and writes results and pictures below `out`; the results of all seeds as plain values.

    Raises ConfigError, DataError and Unknown before the first round; StoreError for a run that is there already and not to be resumed.
    """
    config = load(file, environment, [*map(parse_setting, settings), *flags])
    name = config.name or file.stem
    folder = out or Path("results") / name
    chosen = config.simulate
    if config.data.name == AGENTS:
        raise ConfigError(f"data.name = '{AGENTS}' is for a fleet whose devices bring data; a simulation shares out data that it has")
    if chosen.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: this PyTorch sees no CUDA device")
    seeds, found = chosen.seeds or (config.seed,), []
    for index, seed in enumerate(seeds):
        if len(seeds) > 1:
            say(f"seed {seed}, {index + 1} of {len(seeds)}")
        one = msgspec.structs.replace(
            config, name=f"{name}-seed{seed}", seed=seed, fleet=msgspec.structs.replace(config.fleet, min_agents=chosen.agents)
        )
        found.append(simulate_once(one, runs, folder, resume=resume, say=say))
    return results.write_summary(folder, name, found, say)


def simulate_once(config: Config, runs: Path, folder: Path, *, resume: bool, say: Say) -> dict[str, Any]:
    """One seed, from its partition to its results, which it gives as plain values."""
    source = Source.of(config)
    parts = source.parts
    going_on = resume and config.name in names(runs)
    if going_on:
        check_same(stored(runs, config.name), config)
    prepared = prepare(config, runs, resume=going_on)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partitions.save(folder / f"seed{config.seed}-partition.json", source.whole, parts, config.simulate.partition, config.seed)
        say(
            f"run '{config.name}': {config.method_name} on {config.data.name}, {source.agents} devices ({config.simulate.partition}), "
            f"{config.rounds} rounds, kept in {runs / config.name}"
        )
        if prepared.store.rounds_done < config.rounds:
            carry_out(prepared, source, say)
        return results.write(folder, config, prepared.store, source, say)
    except OSError as error:
        raise StoreError(f"the results cannot be written to {folder}: {error}") from error
    finally:
        prepared.store.close()
        if not going_on:
            prepared.store.discard_if_empty()


def stored(runs: Path, name: str) -> Config:
    """The configuration of a run that is there. Raises StoreError."""
    store = Store.open(runs, name, read_only=True)
    try:
        return load(None, {}, (), base=store.read_facts().config)
    finally:
        store.close()


def carry_out(prepared: Prepared, source: Source, say: Say) -> None:
    """The rounds. Whatever stops the devices stops the run, and is what is raised."""
    broker = MemoryBroker()
    with tempfile.TemporaryDirectory(prefix="espalier-") as spool:
        devices = Devices(broker, prepared.config, source, Path(spool))
        link = MemoryLink(broker, "coordinator")
        try:
            run(prepared, link, Lines(say), devices.begin, patience=PATIENCE, device=prepared.config.simulate.device)
        except LinkError:
            if devices.error is None:
                raise
            raise devices.error from None
        finally:
            devices.close()
