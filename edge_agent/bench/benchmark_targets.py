"""Prepare the networks that `edge-agent bench` measures: submodels, written as files before
anything is timed, or ONNX files as given.

Weights are random and batch norm is calibrated on noise: times do not depend on what a network has
learned, but numbers that vanish or overflow would slow it down or break the quantisation. Importing
this module does not import torch.
"""

from __future__ import annotations

import contextlib
import fnmatch
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from export.release_reader import Kind
from federated.errors import ConfigError, ExportError, Unknown, UsageError
from federated.runtime.extension_errors import explain_lookup
from models.submodel import Network, Submodel

__all__ = [
    "INT8",
    "Target",
    "check_files",
    "check_provider",
    "draw_noise",
    "find_network",
    "prepare_target",
    "resolve_runtimes",
    "select_submodels",
]

Array = npt.NDArray[Any]

RUNTIMES = ("torch", "onnx", "onnx-int8", "onnx-int8-u8s8", "onnx-int8-s8s8", "onnx-int8-dynamic")
INT8 = "onnx-int8"  # the best kind for this machine and network
NOISE = 64  # examples for calibrating batch norm and quantisation


@dataclass(frozen=True)
class Target:
    """One network to measure.

    network: requested name
    name: name of the submodel or file
    files: weights or graph per runtime
    submodel: the submodel; None for a file
    parameters: number of parameters
    macs: multiply-adds of one example
    training_macs: multiply-adds of one example in training
    memory: predicted peak bytes of a training step, beyond the process itself
    """

    network: str
    name: str
    files: Mapping[str, Path] = field(default_factory=dict)
    submodel: Submodel | None = None
    parameters: int | None = None
    macs: int | None = None
    training_macs: int | None = None
    memory: int | None = None


def find_network(model: str, inputs: Sequence[int], outputs: int) -> Network:
    """Return the network of a name, for texts if its family requires tokens. Raises Unknown,
    ConfigError.
    """
    from models.families.catalogue import POINT
    from models.named_network import find_typical_data, network

    with explain_lookup(POINT, "--model: {}"):
        find_typical_data(model)  # raises for a name without a network
    message = "--model: {}; set the input shape and the classes with --inputs and --classes"
    with explain_lookup(POINT, message):
        try:
            return network(model, inputs, outputs)
        except ValueError:
            with contextlib.suppress(ValueError):
                return network(model, inputs, outputs, target="token")
            raise


def select_submodels(
    network: Network, widths: Sequence[float], depths: Sequence[int], patterns: Sequence[str]
) -> tuple[Submodel, ...]:
    """Return the submodels of every width and depth whose names match a pattern, smallest first;
    without depths, full depth. A section with fewer blocks keeps all. Raises ConfigError, Unknown.
    """
    from models.families.catalogue import POINT
    from models.menu import menu
    from models.submodel_building import full

    deepest = max(map(len, full(network).mask), default=1)
    with explain_lookup(POINT):
        able = menu(network, widths, depths or (deepest,))
    for pattern in patterns:
        if not fnmatch.filter([s.name for s in able], pattern):
            raise Unknown("submodel", pattern, [s.name for s in able])
    return tuple(
        s
        for s in able
        if not patterns or any(fnmatch.fnmatchcase(s.name, pattern) for pattern in patterns)
    )


def resolve_runtimes(asked: Sequence[str], network: Network | None) -> tuple[str, ...]:
    """Return the runtimes to measure, with `onnx-int8` replaced by the best kind for this
    machine and network.

    network: None for files
    Raises Unknown, UsageError.
    """
    for name in asked:
        if name not in RUNTIMES:
            raise Unknown("runtime", name, RUNTIMES)
        if network is None and name != "onnx":
            raise UsageError(
                f"--runtime {name}: ONNX files can only be measured with the runtime onnx"
            )
    return tuple(dict.fromkeys(_choose_int8(network) if name == INT8 else name for name in asked))


def check_provider(name: str, runtimes: Sequence[str]) -> None:
    """Check that all runtimes support a provider on this machine. Raises Unknown, UsageError."""
    if any(runtime.startswith("onnx") for runtime in runtimes):
        from edge_agent.bench.onnx_graph import find_provider

        find_provider(name)
    if "torch" in runtimes and name != "cpu":
        import torch

        if name != "cuda" or not torch.cuda.is_available():
            raise UsageError(
                f"--provider {name}: PyTorch {torch.__version__} on this machine supports only "
                f"cpu{' and cuda' * torch.cuda.is_available()}"
            )


def prepare_target(
    network: str, submodel: Submodel, wanted: Sequence[str], batch: int, folder: Path
) -> Target:
    """Write the weights and graphs that the runtimes need into a folder.

    batch: examples of a training step, for the predicted memory
    Raises ExportError, MissingExtra.
    """
    from models.cost import cost

    what = cost(submodel, max(1, batch))
    try:
        made = _write_files(submodel, wanted, folder)
    except ExportError as error:  # removes the temporary folder from the message
        raise ExportError(str(error).replace(f"{folder}/", "")) from error
    return Target(
        network,
        submodel.name,
        made,
        submodel,
        what.parameters,
        what.macs,
        what.training_macs,
        what.memory if batch else None,
    )


def check_files(paths: Sequence[Path], provider: str) -> tuple[Target, ...]:
    """Return ONNX files as targets after loading and running each once. Raises ExportError,
    Unknown; ConfigError for a file that does not exist, UsageError for one named twice.
    """
    from edge_agent.bench.onnx_graph import check_runs, count_graph

    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError(f"expected each file once, found {', '.join(map(str, paths))}")
    if missing := [path for path in paths if not path.exists()]:
        raise ConfigError(f"{missing[0]}: no such file; expected an ONNX file")
    names, targets = [path.name for path in paths], []
    for path in paths:
        check_runs(path, provider)
        parameters, macs = count_graph(path)
        targets.append(
            Target(
                "",
                path.name if names.count(path.name) == 1 else str(path),
                {"onnx": path},
                None,
                parameters,
                macs,
            )
        )
    return tuple(targets)


def draw_noise(network: Network, examples: int) -> tuple[Array, Array]:
    """Return random raw examples of a network and matching labels: classes, values, or tokens
    (the same or the next).
    """
    rng, shape = np.random.default_rng(0), (examples, *network.inputs)
    if network.objective in ("masked", "next"):
        ids = rng.integers(0, network.outputs, shape)
        return ids, np.roll(ids, -1, axis=1)
    x: Array = (
        rng.integers(0, network.tokens, shape)
        if network.tokens
        else rng.standard_normal(shape, np.float32)
    )
    if network.objective == "value":
        return x, rng.standard_normal((examples, network.outputs), np.float32)
    return x, rng.integers(0, network.outputs, examples)


def _choose_int8(network: Network | None) -> str:
    """Return the int8 runtime for a network: dynamic ranges for texts, otherwise the signedness
    that is fast on x86 (unsigned) or ARM (signed).
    """
    if network is not None and network.tokens:
        return "onnx-int8-dynamic"
    return (
        "onnx-int8-s8s8" if platform.machine().lower() in ("aarch64", "arm64") else "onnx-int8-u8s8"
    )


def _write_files(submodel: Submodel, wanted: Sequence[str], folder: Path) -> dict[str, Path]:
    import torch

    from federated.wire import tensors
    from models.layers.batch_norm import calibrate
    from models.submodel_building import build

    examples = draw_noise(submodel.network, NOISE)[0]
    net = build(submodel)
    calibrate(net, [torch.from_numpy(examples)])
    made = {}
    if "torch" in wanted:
        made["torch"] = folder / f"{submodel.name}.tensors"
        made["torch"].write_bytes(
            tensors.encode(
                {}, {name: v for name, v in net.state_dict().items() if v.is_floating_point()}
            )
        )
    if any(name.startswith("onnx") for name in wanted):
        from export.onnx_export import export

        origin = {"run": "bench", "round": 0, "submodel": submodel.name}
        made["onnx"] = export(
            net, submodel.network, examples[:2], folder / f"{submodel.name}.onnx", origin
        )
    for name in wanted:
        if name.startswith(INT8):
            from export.quantize import quantize

            kind = cast("Kind", name.removeprefix("onnx-"))
            made[name] = quantize(
                made["onnx"], kind, examples, folder / f"{submodel.name}-{kind}.onnx"
            )
    return made
