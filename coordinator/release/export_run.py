"""Export a stored run to verified ONNX files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from coordinator.fleet.submodel_shipment import select_statistics
from coordinator.phases.evaluation import assemble
from coordinator.release.release_examples import load_examples
from coordinator.release.serving_choice import choose_serving
from coordinator.release.stored_run import read_run
from coordinator.settings.config_tables import AGENTS
from coordinator.store.run_store import Store
from coordinator.store.training_counts import count_run
from export import release_reader, release_writer
from export.release_writer import Contents, OnEntry
from federated.errors import ConfigError, ExportError, Unknown, explain_os_errors
from federated.method import Method, State
from federated.runtime.console import Say, show_progress
from models.submodel import Submodel
from models.submodel_building import statistics

__all__ = ["ExportRequest", "export_run", "write_release"]


@dataclass(frozen=True)
class ExportRequest:
    """Options of an export.

    run: name of the stored run.
    runs: folder of all runs.
    out: folder to write the release into.
    submodels: names of the submodels to export; empty exports all that are ready.
    inputs: file of raw examples to measure with, for a run whose data is not on this machine.
    int8: whether to try int8 graphs.
    """

    run: str
    runs: Path
    out: Path
    submodels: Sequence[str] = ()
    inputs: Path | None = None
    int8: bool = True


def export_run(request: ExportRequest, say: Say) -> dict[str, Any]:
    """Export a run and print the measurements, as `coordinator export` does; return the manifest as
    plain values. Raises StoreError, ExportError, Unknown, DataError, MissingExtra.
    """
    run, out = request.run, request.out

    def say_entry(entry: release_reader.Entry, done: int, total: int) -> None:
        show(done, total)
        say(f"{entry.label}: {entry.parameters:,} parameters, {entry.macs:,} multiply-adds")
        for line in [
            *(_describe(entry, variant) for variant in entry.variants),
            *(f"left out: {why}" for why in entry.absent),
        ]:
            say(f"  {line}")

    with show_progress("exporting and comparing with PyTorch") as show:
        made, _ = write_release(request, say_entry)
    note = "" if made.labelled else "; without labels, so the accuracy is unknown"
    say(f"measured on {made.examples} real examples that were not used to calibrate{note}")
    first = release_reader.recommended_entries(made)[0]
    mark = (
        ""
        if first.label == first.submodel
        else f" (no exported submodel was trained; {first.submodel} is the smallest)"
    )
    say(
        f"exported round {made.round} of run '{run}' to {out}; try: edge-agent infer --model "
        f"{out / first.variants[0].file.name} INPUTS{mark}"
    )
    say(f"release it to the agents with: coordinator release {run} --bundle {out}")
    return {**msgspec.to_builtins(made), "out": str(out)}


def _describe(entry: release_reader.Entry, variant: release_reader.Variant) -> str:
    """Describe one graph in a line."""
    first, size = entry.variants[0], f"{variant.file.size / 1e3:.0f} kB"
    if variant is first:
        good = f"accuracy {first.accuracy:.4f}, " if first.accuracy is not None else ""
        good += f"differs from PyTorch by at most {variant.max_abs_diff:.1e}"
        return f"{variant.kind:13}{size:>10}  {good}"
    good = f"agrees with PyTorch in {variant.agreement:.2%}"
    if variant.accuracy is not None and first.accuracy is not None:
        good = f"accuracy {variant.accuracy:.4f} ({variant.accuracy - first.accuracy:+.4f})"
    if variant not in release_reader.accurate_variants(entry):
        good += "; no device will use it, because it loses more than a percentage point"
    return f"{variant.kind:13}{size:>10}  {good}"


def write_release(
    request: ExportRequest, on_entry: OnEntry | None = None
) -> tuple[release_reader.Bundle, dict[str, str]]:
    """Export a run's last state into a folder; return the bundle, and the submodel that each agent
    should serve. on_entry: called with each finished submodel.
    """
    run, out = request.run, request.out
    with closing(Store.open(request.runs, run, read_only=True)) as store:
        stored = read_run(store)
        known, wants = count_run(store), choose_serving(store)
    config, method, state = stored.config, stored.method, stored.state
    nets = {
        submodel: assemble(state, method, submodel)
        for submodel in choose_submodels(run, method, state, stored.menu, request.submodels)
    }
    first = next(iter(nets))
    x, truth, classes = load_examples(
        config, request.inputs, first.network, method.recipe(state, first).hide
    )
    about = {
        "method": method.name,
        "data": "of the agents" if config.data.name == AGENTS else config.data.name,
        "model": config.model.name,
    }
    contents = Contents(
        run,
        state.round,
        nets,
        x,
        truth,
        int8=request.int8,
        classes=classes if len(classes) == first.network.outputs else (),
        about=about,
        trained=known.updates,
    )
    with explain_os_errors(
        ConfigError, f"cannot write the release to {out}", remedy="choose another folder"
    ):
        return release_writer.write(out, contents, on_entry), wants


def choose_submodels(
    run: str, method: Method, state: State, menu: Sequence[Submodel], wanted: Sequence[str]
) -> list[Submodel]:
    """Return the requested submodels, or all that have batch norm statistics, each network once.
    Raises Unknown, ExportError.
    """
    known = {submodel.name: submodel.plain for submodel in menu}
    for name in wanted:
        if name not in known:
            raise Unknown("submodel", name, known)
    if wanted:
        return list(dict.fromkeys(known[name] for name in wanted))
    ready = [
        s
        for s in dict.fromkeys(known.values())
        if state.settings["norm"] == "tracked" or not statistics(s) or select_statistics(state, s)
    ]
    if not ready:
        raise ExportError(
            f"run '{run}' has no batch norm statistics after round {state.round}: "
            "finish the run, or set evaluate.every = 1"
        )
    return ready
