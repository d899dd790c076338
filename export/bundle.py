"""A release: a folder with each submodel as ONNX graphs and as weights, and a `manifest.json` that
describes each file and holds its digest. This module reads releases and imports no torch;
`export.bundle_writer` writes them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from export import verify
from export.verify import Array
from federated.errors import ExportError, Malformed, Unknown
from federated.wire import tensors, topics
from federated.wire.release_files import marked

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
    "file_of",
    "files",
    "manifest",
    "read",
    "right",
    "usable",
    "version",
    "weights_of",
]

MANIFEST = "manifest.json"
POINT = 0.01 + 1e-9  # of accuracy: what a graph of int8 may lose
CHECK = "check.tensors"
FORMAT = 2

Kind = Literal["fp32", "int8-u8s8", "int8-s8s8", "int8-dynamic"]
"""How a graph computes: in float32, in int8 with unsigned or signed activations of fixed ranges, or
with ranges found as it runs.
"""


@dataclass(frozen=True)
class File:
    """A file within a release: its name, its size (bytes) and its digest (sha256, hexadecimal)."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Variant:
    """One graph of a submodel. max_abs_diff: largest difference from PyTorch's outputs on real
    examples.

    accuracy: on the release's labelled examples (of values: R2, of texts: of the tokens); None
    where it has no labels.
    agreement: share of the answers that are PyTorch's (of values: R2, its values taken for the
    truth).
    """

    kind: Kind
    file: File
    max_abs_diff: float
    accuracy: float | None = None
    agreement: float = 1.0


@dataclass(frozen=True)
class Entry:
    """One submodel of a release. parameters, macs: how many, of one example; variants: fp32 first;
    weights: as `weights_of` reads them.

    absent: why it has no other variants. trained_updates: how many updates of its run trained it;
    None where that is not known.
    """

    submodel: str
    parameters: int
    macs: int
    variants: tuple[Variant, ...]
    weights: File
    absent: tuple[str, ...] = ()
    trained_updates: int | None = None

    @property
    def label(self) -> str:
        """The submodel for a person, marked where no update trained it."""
        return marked(self.submodel, untrained=self.trained_updates == 0)


@dataclass(frozen=True)
class Bundle:
    """What a manifest says. inputs, dtype: of one raw example; objective, outputs: as
    `models.submodel.Network`; submodels: smallest first.

    classes: their names, where the data have any. examples: how many real ones the graphs were
    compared on; labelled: whether their answers are known. calibrated: how many others gave int8
    its ranges. preprocessing: what the graphs do to raw examples themselves, in raw units. check:
    what `check_of` reads. about: further facts, by name.
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
    labelled: bool = False
    calibrated: int = 0
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT


def read(folder: Path, submodel: str | None = None) -> Bundle:
    """Reads a manifest and checks that every file is there, is the one it names, and is what it
    says; with a submodel, the files of that one.

    Raises ExportError for what is missing, foreign or damaged; Unknown for a submodel that is not
    of it.
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
        raise ExportError(
            f"{folder}: expected a release, found no {MANIFEST} ({error.strerror})"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ExportError(f"{folder / MANIFEST}: not a manifest of a release: {error}") from error
    if bundle.format != FORMAT:
        raise ExportError(f"{folder / MANIFEST}: expected format {FORMAT}, found {bundle.format}")
    for file in files(bundle):
        if not re.match(topics.FILE, file.name) or file.name == MANIFEST:
            raise ExportError(
                f"{folder / MANIFEST}: expected a file within the folder, found '{file.name}'"
            )
    for entry in bundle.submodels:
        kinds = [variant.kind for variant in entry.variants]
        if kinds[:1] != ["fp32"] or len(set(kinds)) != len(kinds):
            raise ExportError(
                f"{folder / MANIFEST}: expected graphs of {entry.submodel}, fp32 first, "
                f"each once; found {', '.join(kinds) or 'none'}"
            )
    if not bundle.submodels:
        raise ExportError(f"{folder / MANIFEST}: expected at least one submodel, found none")
    return bundle


def version(folder: Path) -> str:
    """What tells one release from another: the first 12 digits of its manifest's sha256. Raises
    ExportError.
    """
    try:
        return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise ExportError(
            f"{folder}: expected a release, found no {MANIFEST} ({error.strerror})"
        ) from error


def entry_of(bundle: Bundle, submodel: str) -> Entry:
    """The entry of a submodel. Raises Unknown."""
    for entry in bundle.submodels:
        if entry.submodel == submodel:
            return entry
    raise Unknown("submodel", submodel, [entry.submodel for entry in bundle.submodels])


def usable(bundle: Bundle) -> tuple[Entry, ...]:
    """The submodels to recommend, smallest first: all but those that no update trained; these too
    where there are no others.
    """
    return (
        tuple(entry for entry in bundle.submodels if entry.trained_updates != 0) or bundle.submodels
    )


def files(bundle: Bundle, submodel: str | None = None) -> tuple[File, ...]:
    """All files but the manifest, or those that a device with this submodel needs. Raises
    Unknown.
    """
    chosen = bundle.submodels if submodel is None else (entry_of(bundle, submodel),)
    return (
        bundle.check,
        *(
            file
            for entry in chosen
            for file in (*(variant.file for variant in entry.variants), entry.weights)
        ),
    )


def file_of(path: Path) -> File:
    """A file that is there."""
    return File(path.name, path.stat().st_size, verify.sha256(path))


def right(entry: Entry) -> tuple[Variant, ...]:
    """The variants that answer as well as the first, which is float32: less accurate by a point at
    most; without labels, as often of one mind.
    """
    first = entry.variants[0]
    return tuple(variant for variant in entry.variants if _lost(first, variant) <= POINT)


def check_of(folder: Path, bundle: Bundle) -> tuple[Array, dict[str, Array]]:
    """Raw inputs of noise [n, *inputs], of no one's data, and what each graph, by its file's name,
    said of them when it was made.

    Raises ExportError.
    """
    _, found = _tensors(folder, bundle.check)
    if "x" not in found:
        raise ExportError(
            f"{folder / bundle.check.name}: expected inputs 'x', found "
            f"{', '.join(found) or 'nothing'}"
        )
    return found.pop("x"), found


def weights_of(folder: Path, entry: Entry) -> tuple[dict[str, Any], dict[str, Array]]:
    """The submodel as plain values (of a `models.submodel.Submodel`), and its parameters and
    running statistics by name. Raises ExportError.
    """
    return _tensors(folder, entry.weights)


def _lost(first: Variant, variant: Variant) -> float:
    if variant is first:
        return 0.0
    known = first.accuracy is not None and variant.accuracy is not None
    # known: neither is None
    lost = first.accuracy - variant.accuracy if known else 1 - variant.agreement  # type: ignore[operator]
    return lost if math.isfinite(lost) else math.inf


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
        said = (
            bundle.run,
            str(bundle.round),
            entry.submodel,
            bundle.inputs,
            bundle.dtype,
            bundle.objective,
            bundle.outputs,
        )
        origin = (session.metadata[key] for key in ("run", "round", "submodel"))
        found = (*origin, session.inputs, session.dtype.name, session.objective, session.outputs)
        if said != found:
            raise ExportError(
                f"{folder / variant.file.name}: expected {said} as {MANIFEST} says, found {found}"
            )
