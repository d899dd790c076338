"""Write a release: export every network, measure its graphs, and write the manifest last."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from torch import nn

from export import graph_variants, modelcard, onnx_session
from export.onnx_session import Array
from export.release_reader import MANIFEST, Bundle, Entry
from federated.errors import ExportError
from federated.runtime import atomic_files
from models.submodel import Network, Submodel

__all__ = ["Contents", "OnEntry", "write"]


@dataclass(frozen=True, eq=False)
class Contents:
    """Contents of a new release.

    run: name of the run, or of the network if its submodels were trained by hand
    round: number of the round that the weights are from, or `export.onnx_session.NO_ROUND`
    nets: networks by submodel, all for the same inputs and outputs, batch norm calibrated
    examples: raw examples [n >= 2, *inputs] to measure with, for texts with hidden tokens
    truth: labels of the examples, or None if unknown
    calibration: other raw examples to find int8 ranges on; None sets aside the first of `examples`
    int8: whether to try int8 graphs. A graph that fails is left out, and its entry states why.
    classes: names of the classes, if known
    about: further facts for the model card, such as the method
    trained: number of updates that trained each submodel, by name, where known
    """

    run: str
    round: int
    nets: Mapping[Submodel, nn.Module]
    examples: Array
    truth: Array | None = None
    calibration: Array | None = None
    int8: bool = True
    classes: tuple[str, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    trained: Mapping[str, int] = field(default_factory=dict)


OnEntry = Callable[[Entry, int, int], None]
"""A function that is called with each finished submodel, its number, and the number of all."""


def write(folder: Path, contents: Contents, on_entry: OnEntry | None = None) -> Bundle:
    """Export every network, compare each of its graphs with PyTorch, and write the model card and
    the manifest. An earlier release in the folder stays until the new one is complete.

    on_entry: called with each finished submodel
    ExportError: an export failed, or a file disagrees with its network. Also raises DataError and
        MissingExtra.
    """
    network = _check_networks(folder, contents)
    part = folder / f".{os.getpid()}.part"  # within the folder, which may be a disk of its own
    try:
        part.mkdir(parents=True)
        bundle = _write_files(part, contents, network, on_entry)
        atomic_files.move_files(part, folder, last=MANIFEST)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return bundle


def _write_files(
    folder: Path,
    contents: Contents,
    network: Network,
    on_entry: OnEntry | None,
) -> Bundle:
    """Write all files of a release into a new folder."""
    examples, entries = _split_examples(contents), list[Entry]()
    for submodel, net in contents.nets.items():
        origin = {"run": contents.run, "round": contents.round, "submodel": submodel.name}
        made = graph_variants.write_entry(
            folder, submodel, net, origin, examples, int8=contents.int8
        )
        entries.append(replace(made, trained_updates=contents.trained.get(submodel.name)))
        if on_entry is not None:
            on_entry(entries[-1], len(entries), len(contents.nets))
    entries.sort(key=lambda entry: (entry.parameters, entry.submodel))
    first = onnx_session.load(folder / entries[0].variants[0].file.name)
    bundle = Bundle(
        contents.run,
        contents.round,
        network.inputs,
        contents.examples.dtype.name,
        network.objective,
        network.outputs,
        len(examples.x),
        tuple(entries),
        graph_variants.write_check(folder, first.tokens, entries, contents.examples),
        contents.classes,
        labelled=contents.truth is not None,
        calibrated=len(examples.calibration),
        preprocessing=json.loads(first.metadata["preprocessing"]),
        about=contents.about,
    )
    (folder / modelcard.NAME).write_text(modelcard.render_card(bundle), encoding="utf-8")
    (folder / MANIFEST).write_bytes(
        msgspec.json.format(msgspec.json.encode(bundle), indent=2) + b"\n"
    )
    return bundle


def _check_networks(folder: Path, contents: Contents) -> Network:
    """Return one of the networks after checking that all have the same inputs and outputs."""
    found = {
        (s.network.inputs, s.network.objective, s.network.outputs, s.network.vocabulary)
        for s in contents.nets
    }
    if len(found) != 1:
        raise ExportError(
            f"{folder}: expected submodels with the same inputs, objective, outputs and "
            f"vocabulary, found {sorted(found)}"
        )
    return next(iter(contents.nets)).network


def _split_examples(contents: Contents) -> graph_variants.Examples:
    """Split the examples into those for measuring and those for calibration."""
    if contents.calibration is None and contents.int8:
        return graph_variants.split(contents.examples, contents.truth, contents.classes)
    calibration = contents.examples[:0] if contents.calibration is None else contents.calibration
    return graph_variants.Examples(contents.examples, contents.truth, calibration, contents.classes)
