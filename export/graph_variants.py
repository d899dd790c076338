"""Write the graphs of one submodel, in float32 and int8, and compare each with PyTorch on real
examples; also write the self-test of a release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import nn

from export import onnx_export, onnx_session
from export.onnx_session import Array, Output
from export.quantize import available_kinds, quantize
from export.release_reader import CHECK, Entry, File, Kind, Variant, describe_file
from federated.errors import ExportError
from federated.training.objective import tally
from federated.training.score_sums import Tally, add, metrics
from federated.wire import tensors
from models.cost import cost
from models.submodel import Network, Submodel

__all__ = ["Examples", "split", "write_check", "write_entry", "write_graphs"]

# relative to the largest output (or 1), for float32 sums in another order; measured 1e-7 for a
# PreResNet of 12 blocks
TOLERANCE = 1e-4
CALIBRATED = 128  # maximum number of examples: more hardly change the ranges of a trained network
FEWEST = 4  # with fewer calibration examples, ranges would be arbitrary
TRIES = 8  # number of inputs of the self-test
BATCH = 64  # examples per comparison batch, limited by the memory of a large network in PyTorch


@dataclass(frozen=True, eq=False)
class Examples:
    """Real raw examples.

    x: examples to measure with [n, *inputs]
    truth: their labels [n, ...], or None
    calibration: other examples to calibrate int8 on; may be empty
    classes: names of the classes in order, if known
    """

    x: Array
    truth: Array | None
    calibration: Array
    classes: tuple[str, ...] = ()


def split(x: Array, truth: Array | None, classes: tuple[str, ...] = ()) -> Examples:
    """Use the first examples, at most half, for calibration and the rest for measuring."""
    n = min(CALIBRATED, len(x) // 2)
    return Examples(x[n:], None if truth is None else truth[n:], x[:n], classes)


def write_graphs(
    folder: Path,
    submodel: Submodel,
    net: nn.Module,
    origin: Mapping[str, object],
    examples: Examples,
    *,
    int8: bool,
) -> tuple[tuple[Variant, ...], tuple[str, ...]]:
    """Write the graphs of a submodel into a folder. Return the variants, float32 first, and why
    others are absent.

    origin: run, round and submodel, for the graphs' properties
    ExportError: the network cannot be exported, or its float32 graph disagrees with it. Also raises
        DataError and MissingExtra.
    """
    path = onnx_export.export(
        net,
        submodel.network,
        examples.x[:2],
        folder / f"{submodel.name}.onnx",
        origin,
        examples.classes,
    )
    paths: dict[Kind, Path] = {"fp32": path}
    absent = list[str]()
    for kind in available_kinds(path) if int8 else ():
        out = folder / f"{submodel.name}.{kind}.onnx"
        try:
            if len(examples.calibration) < FEWEST:
                raise ExportError(
                    f"expected at least {FEWEST} examples to calibrate on, found "
                    f"{len(examples.calibration)}"
                )
            paths[kind] = quantize(path, kind, examples.calibration, out)
        except ExportError as error:
            out.unlink(missing_ok=True)
            absent.append(f"{kind}: {error}")
    found = _compare(net, submodel.network, paths, examples)
    if not found["fp32"].difference <= TOLERANCE * max(1.0, found["fp32"].largest):
        raise ExportError(
            f"{path}: the graph's outputs differ from the network's by "
            f"{found['fp32'].difference:g}; expected at most "
            f"{TOLERANCE * max(1.0, found['fp32'].largest):g}"
        )
    for kind in [kind for kind, one in found.items() if not math.isfinite(one.difference)]:
        paths.pop(kind).unlink()
        absent.append(f"{kind}: its outputs are not finite")
    return tuple(
        found[kind].variant(kind, path, submodel.network) for kind, path in paths.items()
    ), tuple(absent)


def write_entry(
    folder: Path,
    submodel: Submodel,
    net: nn.Module,
    origin: Mapping[str, object],
    examples: Examples,
    *,
    int8: bool,
) -> Entry:
    """Write the graphs and the weights of a submodel, and return its entry. Raises as
    `write_graphs` does.
    """
    graphs, absent = write_graphs(folder, submodel, net, origin, examples, int8=int8)
    weights = folder / f"{submodel.name}.tensors"
    weights.write_bytes(
        tensors.encode(
            msgspec.to_builtins(submodel),
            {name: v for name, v in net.state_dict().items() if v.is_floating_point()},
        )
    )
    what = cost(submodel)
    return Entry(submodel.name, what.parameters, what.macs, graphs, describe_file(weights), absent)


def write_check(folder: Path, tokens: int, entries: Sequence[Entry], examples: Array) -> File:
    """Write noise with the mean and standard deviation of the examples, and each graph's outputs
    for it on this machine.

    tokens: number of tokens of texts, or 0
    """
    rng = np.random.default_rng(0)
    shape = (TRIES, *examples.shape[1:])
    x: Array
    if tokens:
        x = rng.integers(0, tokens, shape)
    else:
        x = rng.normal(examples.mean(), examples.std() + 1e-6, shape)
        x = x.clip(0, 255).round() if examples.dtype == np.uint8 else x
    x = x.astype(examples.dtype)
    names = [variant.file.name for entry in entries for variant in entry.variants]
    (folder / CHECK).write_bytes(
        tensors.encode(
            {}, {"x": x, **{name: onnx_session.load(folder / name).predict(x) for name in names}}
        )
    )
    return describe_file(folder / CHECK)


@dataclass
class _Comparison:
    """Comparison of one graph with PyTorch so far.

    difference: largest difference between their outputs
    largest: largest output of PyTorch
    agreed: tallies against PyTorch's answers
    scored: tallies against the labels
    """

    difference: float = 0.0
    largest: float = 0.0
    agreed: list[Tally] = field(default_factory=list)
    scored: list[Tally] = field(default_factory=list)

    def add(self, network: Network, out: Output, wanted: Output, truth: Array | None) -> None:
        """Add one batch: the graph's outputs, PyTorch's, and the labels."""
        # propagates NaN
        self.difference = float(np.maximum(self.difference, np.abs(out - wanted).max()))
        self.largest = max(self.largest, float(np.abs(wanted).max()))
        self.agreed.append(
            _tally(network, out, wanted if network.objective == "value" else wanted.argmax(1))
        )
        if truth is not None:
            self.scored.append(_tally(network, out, truth))

    def variant(self, kind: Kind, path: Path, network: Network) -> Variant:
        accuracy = metrics(add(self.scored), network)["accuracy"] if self.scored else None
        return Variant(
            kind,
            describe_file(path),
            self.difference,
            accuracy,
            metrics(add(self.agreed), network)["accuracy"],
        )


def _compare(
    net: nn.Module, network: Network, paths: Mapping[Kind, Path], examples: Examples
) -> dict[Kind, _Comparison]:
    sessions = {kind: onnx_session.load(path) for kind, path in paths.items()}
    found = {kind: _Comparison() for kind in paths}
    places = network.inputs[0] if network.objective in onnx_session.TOKENS else 1
    step = max(1, min(BATCH, onnx_session.MAX_VALUES // (network.outputs * places)))
    for start in range(0, len(examples.x), step):
        x = examples.x[start : start + step]
        truth = None if examples.truth is None else examples.truth[start : start + step]
        wanted = onnx_export.predict(net, network, x)
        for kind, session in sessions.items():
            found[kind].add(network, session.predict(x), wanted, truth)
    return found


def _tally(network: Network, out: Array, truth: Array) -> Tally:
    """Tally outputs and labels that are given in raw units."""
    if network.objective == "value" and network.shift:
        shift, scale = np.array(network.shift, np.float32), np.array(network.scale, np.float32)
        out, truth = (out - shift) / scale, (truth - shift) / scale
    return tally(
        network, torch.from_numpy(np.array(out)), torch.from_numpy(np.array(truth)), per_class=False
    )
