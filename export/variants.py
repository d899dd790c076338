"""The graphs of one submodel: float32 as exported, int8 as quantised, each measured on real
examples beside PyTorch; and a check of all.
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

from export import graph, verify
from export.bundle import CHECK, Entry, File, Kind, Variant, file_of
from export.quantize import kinds, quantize
from export.verify import Array, Output
from federated.engine.tallies import Tally, add, metrics
from federated.errors import ExportError
from federated.training.objective import tally
from federated.wire import tensors
from models.cost import cost
from models.submodel import Network, Submodel

__all__ = ["TOLERANCE", "Examples", "check", "entry", "made", "split"]

# of the largest output (or of 1): float32 in another order of additions; measured 1e-7 for a
# PreResNet of 12 blocks
TOLERANCE = 1e-4
CALIBRATED = 128  # examples at most: more move no range of a trained network that matters
FEWEST = 4  # with fewer to calibrate on, ranges would be chance
TRIES = 8  # inputs of the self-test
BATCH = 64  # compared at a time, which a large network in PyTorch must have room for


@dataclass(frozen=True, eq=False)
class Examples:
    """Real raw examples x [n, *inputs], what each should be answered, truth [n, ...] or None, and
    others to calibrate int8 on, or none.
    """

    x: Array
    truth: Array | None
    calibration: Array


def split(x: Array, truth: Array | None) -> Examples:
    """The first examples to calibrate on, half of them at most, the others to measure with."""
    n = min(CALIBRATED, len(x) // 2)
    return Examples(x[n:], None if truth is None else truth[n:], x[:n])


def made(
    folder: Path,
    submodel: Submodel,
    net: nn.Module,
    origin: Mapping[str, object],
    examples: Examples,
    *,
    int8: bool,
) -> tuple[tuple[Variant, ...], tuple[str, ...]]:
    """Writes the graphs of a submodel into a folder: the variants, float32 first, and why others
    are absent.

    origin: run, round and submodel, for the graphs' properties. Raises ExportError for what cannot
    be exported, or disagrees with the network in float32; DataError; MissingExtra.
    """
    path = graph.export(
        net, submodel.network, examples.x[:2], folder / f"{submodel.name}.onnx", origin
    )
    paths: dict[Kind, Path] = {"fp32": path}
    absent = list[str]()
    for kind in kinds(path) if int8 else ():
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
    found = _compared(net, submodel.network, paths, examples)
    if not found["fp32"].difference <= TOLERANCE * max(1.0, found["fp32"].largest):
        raise ExportError(
            f"{path}: expected what the network says that it was made from, found a "
            f"difference of {found['fp32'].difference:g}"
        )
    for kind in [kind for kind, one in found.items() if not math.isfinite(one.difference)]:
        paths.pop(kind).unlink()
        absent.append(f"{kind}: its answers are not finite")
    return tuple(
        found[kind].variant(kind, path, submodel.network) for kind, path in paths.items()
    ), tuple(absent)


def entry(
    folder: Path,
    submodel: Submodel,
    net: nn.Module,
    origin: Mapping[str, object],
    examples: Examples,
    *,
    int8: bool,
) -> Entry:
    """The same, with the submodel's weights. Raises what `made` raises."""
    graphs, absent = made(folder, submodel, net, origin, examples, int8=int8)
    weights = folder / f"{submodel.name}.tensors"
    weights.write_bytes(
        tensors.encode(
            msgspec.to_builtins(submodel),
            {name: v for name, v in net.state_dict().items() if v.is_floating_point()},
        )
    )
    what = cost(submodel)
    return Entry(submodel.name, what.parameters, what.macs, graphs, file_of(weights), absent)


def check(folder: Path, tokens: int, entries: Sequence[Entry], examples: Array) -> File:
    """Noise with the mean and the spread of the examples, and what each graph says of it on this
    machine. tokens: size of a vocabulary, else 0.
    """
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
    (folder / CHECK).write_bytes(
        tensors.encode(
            {}, {"x": x, **{name: verify.load(folder / name).predict(x) for name in names}}
        )
    )
    return file_of(folder / CHECK)


@dataclass
class _Found:
    """What was found of one graph so far. difference, largest: of any number of its outputs;
    agreed, scored: tallies.
    """

    difference: float = 0.0
    largest: float = 0.0
    agreed: list[Tally] = field(default_factory=list)
    scored: list[Tally] = field(default_factory=list)

    def add(self, network: Network, out: Output, wanted: Output, truth: Array | None) -> None:
        """One batch: what the graph says, what PyTorch says, and what is true."""
        # keeps what is not a number
        self.difference = float(np.maximum(self.difference, np.abs(out - wanted).max()))
        self.largest = max(self.largest, float(np.abs(wanted).max()))
        self.agreed.append(
            _counted(network, out, wanted if network.objective == "value" else wanted.argmax(1))
        )
        if truth is not None:
            self.scored.append(_counted(network, out, truth))

    def variant(self, kind: Kind, path: Path, network: Network) -> Variant:
        accuracy = metrics(add(self.scored), network)["accuracy"] if self.scored else None
        return Variant(
            kind,
            file_of(path),
            self.difference,
            accuracy,
            metrics(add(self.agreed), network)["accuracy"],
        )


def _compared(
    net: nn.Module, network: Network, paths: Mapping[Kind, Path], examples: Examples
) -> dict[Kind, _Found]:
    sessions = {kind: verify.load(path) for kind, path in paths.items()}
    found = {kind: _Found() for kind in paths}
    places = network.inputs[0] if network.objective in verify.TOKENS else 1
    step = max(1, min(BATCH, verify.NUMBERS // (network.outputs * places)))
    for start in range(0, len(examples.x), step):
        x = examples.x[start : start + step]
        truth = None if examples.truth is None else examples.truth[start : start + step]
        wanted = graph.predict(net, network, x)
        for kind, session in sessions.items():
            found[kind].add(network, session.predict(x), wanted, truth)
    return found


def _counted(network: Network, out: Array, truth: Array) -> Tally:
    """A tally of outputs in raw units."""
    if network.objective == "value" and network.shift:
        shift, scale = np.array(network.shift, np.float32), np.array(network.scale, np.float32)
        out, truth = (out - shift) / scale, (truth - shift) / scale
    return tally(
        network, torch.from_numpy(np.array(out)), torch.from_numpy(np.array(truth)), per_class=False
    )
