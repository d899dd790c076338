"""A release: one folder with each submodel as ONNX graphs and as weights, and a `manifest.json` that says what each file is, and its digest."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from export import verify
from export.verify import Array
from federated.errors import ExportError, Malformed, Unknown
from federated.wire import tensors, topics

if TYPE_CHECKING:
    from torch import nn

    from models.submodel import Submodel

__all__ = [
    "CHECK",
    "MANIFEST",
    "Bundle",
    "Entry",
    "File",
    "Kind",
    "Variant",
    "check_of",
    "entry_of",
    "files",
    "manifest",
    "read",
    "right",
    "version",
    "weights_of",
    "write",
]

MANIFEST = "manifest.json"
POINT = 0.01 + 1e-9  # of accuracy: what a graph of int8 may lose
CHECK = "check.tensors"
FORMAT = 2
TOLERANCE = 1e-4  # of the largest output (or of 1): float32 in another order of additions; measured 1e-7 for a PreResNet of 12 blocks
TEXTS = 8  # compared of texts, each of which has a whole vocabulary of logits at each place
TRIES = 8  # inputs of the self-test

Kind = Literal["fp32", "int8-u8s8", "int8-s8s8", "int8-dynamic"]
"""How a graph computes: in float32, in int8 with unsigned or signed activations of fixed ranges, or with ranges found as it runs."""


@dataclass(frozen=True)
class File:
    """A file within a release: its name, its size (bytes) and its digest (sha256, hexadecimal)."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Variant:
    """One graph of a submodel. max_abs_diff: largest difference from PyTorch's outputs on real examples.

    accuracy: on the release's labelled examples (of values: R2, of texts: of the tokens); None where it has no labels.
    agreement: share of the answers that are PyTorch's (of values: R2, its values taken for the truth).
    """

    kind: Kind
    file: File
    max_abs_diff: float
    accuracy: float | None = None
    agreement: float = 1.0


@dataclass(frozen=True)
class Entry:
    """One submodel of a release. parameters, macs: how many, of one example; variants: fp32 first; weights: as `weights_of` reads them."""

    submodel: str
    parameters: int
    macs: int
    variants: tuple[Variant, ...]
    weights: File


@dataclass(frozen=True)
class Bundle:
    """What a manifest says. inputs, dtype: of one raw example; objective, outputs: as `models.submodel.Network`; submodels: smallest first.

    classes: their names, where the data have any. examples: how many real ones were compared. check: what `check_of` reads.
    """

    run: str
    round: int
    inputs: tuple[int, ...]
    dtype: str
    objective: str
    outputs: int
    examples: int
    submodels: tuple[Entry, ...]
    check: File
    classes: tuple[str, ...] = ()
    format: int = FORMAT


def write(folder: Path, run: str, round: int, nets: Mapping[Submodel, nn.Module], examples: Array) -> Bundle:
    """Exports every network, compares each graph with it on the examples, and writes the manifest last.

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
    check = _check(folder, network.outputs if network.objective in verify.TOKENS else 0, entries, examples)
    bundle = Bundle(run, round, network.inputs, examples.dtype.name, network.objective, network.outputs, len(examples), tuple(entries), check)
    partial = folder / f"{MANIFEST}.part"
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(bundle), indent=2) + b"\n")
    partial.replace(folder / MANIFEST)
    return bundle


def read(folder: Path, submodel: str | None = None) -> Bundle:
    """Reads a manifest and checks that every file is there, is the one it names, and is what it says; with a submodel, the files of that one.

    Raises ExportError for what is missing, foreign or damaged; Unknown for a submodel that is not of it.
    """
    bundle = manifest(folder)
    for entry in bundle.submodels if submodel is None else [entry_of(bundle, submodel)]:
        _agrees(folder, bundle, entry)
    check_of(folder, bundle)
    return bundle


def manifest(folder: Path) -> Bundle:
    """Reads a manifest alone; its files may not be there. Raises ExportError."""
    try:
        bundle = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Bundle)
    except OSError as error:
        raise ExportError(f"{folder}: expected a release, found no {MANIFEST} ({error.strerror})") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ExportError(f"{folder / MANIFEST}: not a manifest of a release: {error}") from error
    if bundle.format != FORMAT:
        raise ExportError(f"{folder / MANIFEST}: expected format {FORMAT}, found {bundle.format}")
    for file in files(bundle):
        if not re.match(topics.FILE, file.name) or file.name == MANIFEST:
            raise ExportError(f"{folder / MANIFEST}: expected a file within the folder, found '{file.name}'")
    return bundle


def version(folder: Path) -> str:
    """What tells one release from another: the first 12 digits of its manifest's sha256. Raises ExportError."""
    try:
        return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise ExportError(f"{folder}: expected a release, found no {MANIFEST} ({error.strerror})") from error


def entry_of(bundle: Bundle, submodel: str) -> Entry:
    """The entry of a submodel. Raises Unknown."""
    for entry in bundle.submodels:
        if entry.submodel == submodel:
            return entry
    raise Unknown("submodel", submodel, [entry.submodel for entry in bundle.submodels])


def files(bundle: Bundle, submodel: str | None = None) -> tuple[File, ...]:
    """All files but the manifest, or those that a device with this submodel needs. Raises Unknown."""
    chosen = bundle.submodels if submodel is None else (entry_of(bundle, submodel),)
    return (bundle.check, *(file for entry in chosen for file in (*(variant.file for variant in entry.variants), entry.weights)))


def right(entry: Entry) -> tuple[Variant, ...]:
    """The variants that answer as well as the first, which is float32: less accurate by a point at most; without labels, as often of one mind."""
    first = entry.variants[0]
    return tuple(variant for variant in entry.variants if _lost(first, variant) <= POINT)


def check_of(folder: Path, bundle: Bundle) -> tuple[Array, dict[str, Array]]:
    """Raw inputs of noise [n, *inputs], of no one's data, and what each graph, by its file's name, said of them when it was made.

    Raises ExportError.
    """
    _, found = _tensors(folder, bundle.check)
    if "x" not in found:
        raise ExportError(f"{folder / bundle.check.name}: expected inputs 'x', found {', '.join(found) or 'nothing'}")
    return found.pop("x"), found


def weights_of(folder: Path, entry: Entry) -> tuple[dict[str, Any], dict[str, Array]]:
    """The submodel as plain values (of a `models.submodel.Submodel`), and its parameters and running statistics by name. Raises ExportError."""
    return _tensors(folder, entry.weights)


def _lost(first: Variant, variant: Variant) -> float:
    if variant is first:
        return 0.0
    known = first.accuracy is not None and variant.accuracy is not None
    lost = first.accuracy - variant.accuracy if known else 1 - variant.agreement  # type: ignore[operator]  # known: neither is None
    return lost if math.isfinite(lost) else math.inf


def _entry(folder: Path, run: str, round: int, submodel: Submodel, net: nn.Module, examples: Array) -> Entry:
    from export import graph  # torch: who reads a release may have none
    from models.cost import cost

    origin = {"run": run, "round": round, "submodel": submodel.name}
    path = graph.export(net, submodel.network, examples[:2], folder / f"{submodel.name}.onnx", origin)
    examples = examples[:TEXTS] if submodel.network.objective in verify.TOKENS else examples
    wanted = graph.predict(net, submodel.network, examples)
    difference = verify.compare(path, examples, wanted)
    if not difference <= TOLERANCE * max(1.0, float(np.abs(wanted).max())):
        raise ExportError(f"{path}: expected what the network says that it was made from, found a difference of {difference:g}")
    weights = folder / f"{submodel.name}.tensors"
    weights.write_bytes(tensors.encode(msgspec.to_builtins(submodel), {name: v for name, v in net.state_dict().items() if v.is_floating_point()}))
    what = cost(submodel)
    return Entry(submodel.name, what.parameters, what.macs, (Variant("fp32", _file(path), difference),), _file(weights))


def _check(folder: Path, tokens: int, entries: list[Entry], examples: Array) -> File:
    """Noise with the mean and the spread of the examples, and what each graph says of it on this machine. tokens: size of a vocabulary, else 0."""
    rng = np.random.default_rng(0)
    shape = (TRIES, *examples.shape[1:])
    x: Array
    if tokens:
        x = rng.integers(0, tokens + 1, shape)  # one past the last: a hidden token
    else:
        x = rng.normal(examples.mean(), examples.std() + 1e-6, shape)
        x = x.clip(0, 255).round() if examples.dtype == np.uint8 else x
    x = x.astype(examples.dtype)
    names = [variant.file.name for entry in entries for variant in entry.variants]
    (folder / CHECK).write_bytes(tensors.encode({}, {"x": x, **{name: verify.load(folder / name).predict(x) for name in names}}))
    return _file(folder / CHECK)


def _file(path: Path) -> File:
    return File(path.name, path.stat().st_size, verify.sha256(path))


def _tensors(folder: Path, file: File) -> tuple[dict[str, Any], dict[str, Array]]:
    path = folder / file.name
    try:
        data = path.read_bytes()
        if (found := hashlib.sha256(data).hexdigest()) != file.sha256:
            raise ExportError(f"{path}: expected sha256 {file.sha256}, found {found}")
        return tensors.decode(data)
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror or error}") from error
    except Malformed as error:
        raise ExportError(f"{path}: {error}") from error


def _agrees(folder: Path, bundle: Bundle, entry: Entry) -> None:
    weights_of(folder, entry)
    for variant in entry.variants:
        session = verify.load(folder / variant.file.name, variant.file.sha256)
        said = (bundle.run, str(bundle.round), entry.submodel, bundle.inputs, bundle.dtype, bundle.objective, bundle.outputs)
        origin = (session.metadata[key] for key in ("run", "round", "submodel"))
        found = (*origin, session.inputs, session.dtype.name, session.objective, session.outputs)
        if said != found:
            raise ExportError(f"{folder / variant.file.name}: expected {said} as {MANIFEST} says, found {found}")
