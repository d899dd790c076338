"""Read a release: a folder with each submodel as ONNX graphs and weights, and a `manifest.json`
with each file's description and digest.

This module does not import torch; `export.release_writer` writes releases.
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

from export import onnx_session
from export.onnx_session import Array
from federated.errors import ExportError, Malformed, Unknown, describe_os_error
from federated.runtime import atomic_files
from federated.wire import tensors, topics
from federated.wire.release_messages import label_submodel

__all__ = [
    "CHECK",
    "MANIFEST",
    "Bundle",
    "Entry",
    "File",
    "Kind",
    "Variant",
    "accurate_variants",
    "describe_file",
    "find_entry",
    "list_files",
    "read",
    "read_check",
    "read_manifest",
    "read_version",
    "read_weights",
    "recommended_entries",
]

MANIFEST = "manifest.json"
POINT = 0.01 + 1e-9  # accuracy that an int8 graph may lose
CHECK = "check.tensors"
FORMAT = 2

Kind = Literal["fp32", "int8-u8s8", "int8-s8s8", "int8-dynamic"]
"""How a graph computes: in float32, in int8 with unsigned or signed activations in fixed ranges,
or in int8 with ranges found at run time.
"""


@dataclass(frozen=True)
class File:
    """A file within a release.

    name: file name
    size: bytes
    sha256: hexadecimal digest
    """

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Variant:
    """One graph of a submodel.

    kind: how the graph computes
    file: the ONNX file
    max_abs_diff: largest difference from PyTorch's outputs on real examples
    accuracy: on the release's labelled examples (for values R2, for texts per token); None without
        labels
    agreement: fraction of answers equal to PyTorch's (for values, R2 against PyTorch's)
    """

    kind: Kind
    file: File
    max_abs_diff: float
    accuracy: float | None = None
    agreement: float = 1.0


@dataclass(frozen=True)
class Entry:
    """One submodel of a release.

    submodel: name of the submodel
    parameters: number of parameters
    macs: multiply-adds for one example
    variants: graphs, fp32 first
    weights: file that `read_weights` reads
    absent: why other variants are missing
    trained_updates: number of updates of the run that trained it, or None if unknown
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
        """Display name of the submodel, marked if no update trained it."""
        return label_submodel(self.submodel, untrained=self.trained_updates == 0)


@dataclass(frozen=True)
class Bundle:
    """Contents of a manifest.

    run: name of the run, or of the network if its submodels were trained by hand
    round: round that the weights are from, or `export.onnx_session.NO_ROUND`
    inputs: shape of one raw example
    dtype: type of raw examples
    objective: see `models.submodel.Network`
    outputs: see `models.submodel.Network`
    examples: number of real examples that the graphs were compared on
    submodels: smallest first
    check: file that `read_check` reads
    classes: names of the classes, if known
    labelled: whether the examples have labels
    calibrated: number of other examples that the int8 ranges were found on
    preprocessing: what the graphs do to raw examples, in raw units
    about: further facts by name
    format: version of the manifest's format
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
    """Read a manifest and check that every file is present and agrees with it; with a submodel,
    check only that submodel's files.

    ExportError: a file is missing, foreign or damaged. Unknown: the release has no such submodel.
    """
    bundle = read_manifest(folder)
    for entry in bundle.submodels if submodel is None else [find_entry(bundle, submodel)]:
        _check_entry(folder, bundle, entry)
    read_check(folder, bundle)
    return bundle


def read_manifest(folder: Path) -> Bundle:
    """Read a manifest alone, without checking that its files exist. Raises ExportError."""
    data = _read_manifest_file(folder)
    try:
        bundle = msgspec.json.decode(data, type=Bundle)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ExportError(f"{folder / MANIFEST}: not a manifest of a release: {error}") from error
    if bundle.format != FORMAT:
        raise ExportError(f"{folder / MANIFEST}: expected format {FORMAT}, found {bundle.format}")
    for file in list_files(bundle):
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


def read_version(folder: Path) -> str:
    """Return the version of a release: the first 12 digits of its manifest's sha256. Raises
    ExportError.
    """
    return hashlib.sha256(_read_manifest_file(folder)).hexdigest()[:12]


def find_entry(bundle: Bundle, submodel: str) -> Entry:
    """Return the entry of a submodel. Raises Unknown."""
    for entry in bundle.submodels:
        if entry.submodel == submodel:
            return entry
    raise Unknown("submodel", submodel, [entry.submodel for entry in bundle.submodels])


def recommended_entries(bundle: Bundle) -> tuple[Entry, ...]:
    """Return the submodels to recommend, smallest first: the trained ones, or all if none was
    trained.
    """
    return (
        tuple(entry for entry in bundle.submodels if entry.trained_updates != 0) or bundle.submodels
    )


def list_files(bundle: Bundle, submodel: str | None = None) -> tuple[File, ...]:
    """Return all files but the manifest, or those that a device with this submodel needs. Raises
    Unknown.
    """
    chosen = bundle.submodels if submodel is None else (find_entry(bundle, submodel),)
    return (
        bundle.check,
        *(
            file
            for entry in chosen
            for file in (*(variant.file for variant in entry.variants), entry.weights)
        ),
    )


def describe_file(path: Path) -> File:
    """Describe an existing file."""
    return File(path.name, path.stat().st_size, atomic_files.sha256(path))


def accurate_variants(entry: Entry) -> tuple[Variant, ...]:
    """Return the variants as accurate as the float32 one: at most a point less accurate, or
    without labels, at most a point less agreement.
    """
    first = entry.variants[0]
    return tuple(
        variant for variant in entry.variants if _compare_accuracy(first, variant) <= POINT
    )


def read_check(folder: Path, bundle: Bundle) -> tuple[Array, dict[str, Array]]:
    """Return random raw inputs [n, *inputs] and each graph's recorded outputs for them, by file
    name. Raises ExportError.
    """
    _, found = _read_tensors(folder, bundle.check)
    if "x" not in found:
        raise ExportError(
            f"{folder / bundle.check.name}: expected inputs 'x', found "
            f"{', '.join(found) or 'nothing'}"
        )
    return found.pop("x"), found


def read_weights(folder: Path, entry: Entry) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the submodel as plain values (of a `models.submodel.Submodel`), and its parameters
    and running statistics by name. Raises ExportError.
    """
    return _read_tensors(folder, entry.weights)


def _read_manifest_file(folder: Path) -> bytes:
    try:
        return (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise ExportError(
            f"{folder}: expected the folder of a release, found no {MANIFEST} "
            f"({describe_os_error(error)}); write one with: coordinator export RUN --out DIR"
        ) from error


def _compare_accuracy(first: Variant, variant: Variant) -> float:
    if variant is first:
        return 0.0
    known = first.accuracy is not None and variant.accuracy is not None
    # `known` means that neither is None
    lost = first.accuracy - variant.accuracy if known else 1 - variant.agreement  # type: ignore[operator]
    return lost if math.isfinite(lost) else math.inf


def _read_tensors(folder: Path, file: File) -> tuple[dict[str, Any], dict[str, Array]]:
    path = folder / file.name
    try:
        return tensors.decode(onnx_session.read_file(path, file.sha256))
    except Malformed as error:
        raise ExportError(f"{path}: {error}") from error


def _check_entry(folder: Path, bundle: Bundle, entry: Entry) -> None:
    read_weights(folder, entry)
    for variant in entry.variants:
        session = onnx_session.load(folder / variant.file.name, variant.file.sha256)
        expected = (
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
        if expected != found:
            raise ExportError(
                f"{folder / variant.file.name}: expected {expected} as in {MANIFEST}, found {found}"
            )
