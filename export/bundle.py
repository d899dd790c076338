"""A release: one folder with one ONNX file per submodel and a `manifest.json` that says what each is and what its digest is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from export import verify
from export.verify import Array
from federated.errors import ExportError

if TYPE_CHECKING:
    from torch import nn

    from models.submodel import Submodel

__all__ = ["MANIFEST", "Bundle", "Entry", "read", "write"]

MANIFEST = "manifest.json"
FORMAT = 1
TOLERANCE = 1e-4  # of the largest output (or of 1): float32 in another order of additions; measured 1e-7 for a PreResNet of 12 blocks
TEXTS = 8  # compared of texts, each of which has a whole vocabulary of logits at each place


@dataclass(frozen=True)
class Entry:
    """One submodel of a release.

    file: within the folder; sha256 and size (bytes) of it. parameters: how many. max_abs_diff: largest difference from PyTorch's.
    """

    submodel: str
    file: str
    sha256: str
    size: int
    parameters: int
    max_abs_diff: float


@dataclass(frozen=True)
class Bundle:
    """What a manifest says. inputs, dtype: of one raw example; objective, outputs: as `models.submodel.Network`; submodels: smallest first."""

    run: str
    round: int
    inputs: tuple[int, ...]
    dtype: str
    objective: str
    outputs: int
    submodels: tuple[Entry, ...]
    format: int = FORMAT


def write(folder: Path, run: str, round: int, nets: Mapping[Submodel, nn.Module], examples: Array) -> Bundle:
    """Exports every network, compares each file with it on the examples, and writes the manifest last.

    nets: by submodel, all for the same examples and answers, batch norm calibrated. examples: raw, [n >= 2, *inputs].
    Raises ExportError, also for a file that disagrees with its network; DataError; MissingExtra.
    """
    kinds = {(s.network.inputs, s.network.objective, s.network.outputs) for s in nets}
    if len(kinds) != 1:
        raise ExportError(f"{folder}: expected submodels for the same inputs, objective and outputs, found {sorted(kinds)}")
    network = next(iter(nets)).network
    (folder / MANIFEST).unlink(missing_ok=True)  # no manifest is better than one of other files
    entries = [_entry(folder, run, round, submodel, net, examples) for submodel, net in nets.items()]
    entries.sort(key=lambda entry: (entry.parameters, entry.submodel))
    bundle = Bundle(run, round, network.inputs, examples.dtype.name, network.objective, network.outputs, tuple(entries))
    partial = folder / f"{MANIFEST}.part"
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(bundle), indent=2) + b"\n")
    partial.replace(folder / MANIFEST)
    return bundle


def read(folder: Path) -> Bundle:
    """Reads a manifest and checks that every file is there, is the one it names, and is what it says.

    Raises ExportError for what is missing, foreign or damaged.
    """
    try:
        bundle = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Bundle)
    except OSError as error:
        raise ExportError(f"{folder}: expected a release, found no {MANIFEST} ({error.strerror})") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ExportError(f"{folder / MANIFEST}: not a manifest of a release: {error}") from error
    if bundle.format != FORMAT:
        raise ExportError(f"{folder / MANIFEST}: expected format {FORMAT}, found {bundle.format}")
    for entry in bundle.submodels:
        _agrees(folder, bundle, entry)
    return bundle


def _entry(folder: Path, run: str, round: int, submodel: Submodel, net: nn.Module, examples: Array) -> Entry:
    from export import graph  # torch: who reads a release may have none

    origin = {"run": run, "round": round, "submodel": submodel.name}
    path = graph.export(net, submodel.network, examples[:2], folder / f"{submodel.name}.onnx", origin)
    examples = examples[:TEXTS] if submodel.network.objective in verify.TOKENS else examples
    wanted = graph.predict(net, submodel.network, examples)
    difference = verify.compare(path, examples, wanted)
    if not difference <= TOLERANCE * max(1.0, float(np.abs(wanted).max())):
        raise ExportError(f"{path}: expected what the network says that it was made from, found a difference of {difference:g}")
    parameters = sum(value.numel() for value in net.parameters())
    return Entry(submodel.name, path.name, verify.sha256(path), path.stat().st_size, parameters, difference)


def _agrees(folder: Path, bundle: Bundle, entry: Entry) -> None:
    if Path(entry.file).name != entry.file:
        raise ExportError(f"{folder / MANIFEST}: expected a file within the folder, found '{entry.file}'")
    session = verify.load(folder / entry.file, entry.sha256)
    said = (bundle.run, str(bundle.round), entry.submodel, bundle.inputs, bundle.dtype, bundle.objective, bundle.outputs)
    origin = (session.metadata[key] for key in ("run", "round", "submodel"))
    found = (*origin, session.inputs, session.dtype.name, session.objective, session.outputs)
    if said != found:
        raise ExportError(f"{folder / entry.file}: expected {said} as {MANIFEST} says, found {found}")
