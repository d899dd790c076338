"""From a stored run to ONNX files that are checked, and on to the agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.config import Config, load
from coordinator.evaluation import assemble
from coordinator.start import AGENTS
from coordinator.store import Store
from coordinator.weights import statistics_of
from export import bundle
from federated.data import catalogue as data
from federated.errors import ConfigError, ExportError, StoreError, Unknown
from federated.method import Method, State, configure
from federated.methods.catalogue import method as method_named
from models.families import initial, statistics
from models.submodel import Submodel

__all__ = ["export_run", "write_release"]

EXAMPLES = 64  # raw inputs that each exported graph is compared on


def export_run(run: str, out: Path, wanted: Sequence[str], inputs: Path | None, runs: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """What `coordinator export` does; its result as plain values. Raises StoreError, ExportError, Unknown, DataError."""
    made, _ = write_release(run, out, wanted, inputs, runs)
    for entry in made.submodels:
        for variant in entry.variants:
            size = f"{variant.file.size / 1e3:.0f} kB"
            say(f"{variant.file.name}: {entry.parameters:,} parameters, {size}, at most {variant.max_abs_diff:.1e} from PyTorch")
    say(f"round {made.round} of run '{run}' is in {out}; try: edge-agent infer --model {out / made.submodels[0].variants[0].file.name} INPUTS")
    say(f"release it to the agents by: coordinator release {run} --bundle {out} --broker HOST")
    return {**msgspec.to_builtins(made), "out": str(out)}


def write_release(run: str, out: Path, wanted: Sequence[str], inputs: Path | None, runs: Path) -> tuple[bundle.Bundle, dict[str, str]]:
    """Exports a run's last state into a folder; the bundle, and which submodel each agent had last."""
    store = Store.open(runs, run, read_only=True)
    try:
        facts, last = store.read_facts(), store.last()
        config = load(None, {}, (), base=facts.config)
        if last is None or facts.network is None:
            raise StoreError(f"run '{run}' has no finished round to export")
        trained = store.assigned()
    finally:
        store.close()
    method = method_named(config.method_name)
    state = method.start(
        initial(facts.network, config.seed, method.features), facts.menu, configure(method, config.settings, seed=config.seed, rounds=config.rounds)
    )
    state = State(last.round, last.tensors, state.settings, last.fleet)
    nets = {submodel: assemble(state, method, submodel) for submodel in chosen(run, method, state, facts.menu, wanted)}
    plain = {submodel.name: submodel.plain.name for submodel in facts.menu}
    return bundle.write(out, run, last.round, nets, examples(config, inputs)), {agent: plain[name] for agent, name in trained.items()}


def chosen(run: str, method: Method, state: State, menu: Sequence[Submodel], wanted: Sequence[str]) -> list[Submodel]:
    """The submodels that are asked for, or all that have batch norm statistics, each network once. Raises Unknown, ExportError."""
    known = {submodel.name: submodel.plain for submodel in menu}
    for name in wanted:
        if name not in known:
            raise Unknown("submodel", name, known)
    if wanted:
        return list(dict.fromkeys(known[name] for name in wanted))
    ready = [s for s in dict.fromkeys(known.values()) if state.settings["norm"] == "tracked" or not statistics(s) or statistics_of(state, s)]
    if not ready:
        raise ExportError(f"run '{run}' has no batch norm statistics after round {state.round}: finish the run, or set evaluate.every = 1")
    return ready


def examples(config: Config, inputs: Path | None) -> NDArray[Any]:
    """Real raw inputs to compare with: from a file, or held out from the run's data. Raises ConfigError, DataError."""
    if inputs is None and config.data.name == AGENTS:
        raise ConfigError("the coordinator of this run holds no data: name raw examples to compare with by --inputs FILE.npz")
    if inputs is not None:
        whole = data.load(str(inputs))
        return np.ascontiguousarray(whole.x[:EXAMPLES])
    whole = data.central(config.data.name, config.data.root)
    return np.ascontiguousarray(whole.x_held[:EXAMPLES])
