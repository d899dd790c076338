"""What a benchmark measures: submodels of a network, made ready as files before anything is timed,
or ONNX files as they are.

Weights are random, and batch norm is calibrated on noise: how long a network takes does not depend
on what it knows, but numbers that vanish or overflow on their way would cost, or break the
quantisation. Importing this imports no torch.
"""

from __future__ import annotations

import fnmatch
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from export.bundle import Kind
from federated.errors import ConfigError, ExportError, Unknown, UsageError
from federated.runtime.plugins import unknown
from models.submodel import Network, Submodel

__all__ = [
    "INT8",
    "RUNTIMES",
    "Target",
    "check_provider",
    "chosen",
    "files",
    "made_ready",
    "named",
    "noise",
    "runtimes",
]

Array = npt.NDArray[Any]

RUNTIMES = ("torch", "onnx", "onnx-int8", "onnx-int8-u8s8", "onnx-int8-s8s8", "onnx-int8-dynamic")
INT8 = "onnx-int8"  # the one that suits this machine and network
NOISE = 64  # examples that batch norm and quantisation are calibrated on


@dataclass(frozen=True)
class Target:
    """One network to measure. network: the name that it was asked for by; files: per runtime,
    weights or a graph; submodel: None of a file.

    memory: predicted peak bytes of a training step, beyond the process itself.
    """

    network: str
    name: str
    files: Mapping[str, Path] = field(default_factory=dict)
    submodel: Submodel | None = None
    parameters: int | None = None
    macs: int | None = None
    training_macs: int | None = None
    memory: int | None = None


def named(model: str, inputs: Sequence[int], outputs: int) -> Network:
    """The network of a name, which reads texts of tokens where its family does. Raises Unknown,
    ConfigError.
    """
    from models.families.catalogue import KIND, network

    try:
        try:
            return network(model, inputs, outputs)
        except ValueError as error:
            try:
                return network(model, inputs, outputs, target="token")
            except ValueError:
                raise error from None
    except LookupError as error:
        raise unknown(KIND, error) from None
    except ValueError as error:
        raise ConfigError(
            f"--model {model}: {error}; --inputs and --classes say what it is to take and to give"
        ) from error


def chosen(
    network: Network, widths: Sequence[float], depths: Sequence[int], patterns: Sequence[str]
) -> tuple[Submodel, ...]:
    """The submodels of every width and depth whose names fit a pattern, smallest first; no depths:
    full. Raises ConfigError, Unknown.
    """
    from models.families.catalogue import full, menu

    try:
        able = menu(network, widths, depths or (max(map(len, full(network).mask), default=1),))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    for pattern in patterns:
        if not fnmatch.filter([s.name for s in able], pattern):
            raise Unknown("submodel", pattern, [s.name for s in able])
    return tuple(
        s
        for s in able
        if not patterns or any(fnmatch.fnmatchcase(s.name, pattern) for pattern in patterns)
    )


def runtimes(asked: Sequence[str], network: Network | None) -> tuple[str, ...]:
    """The runtimes to measure, `onnx-int8` as what suits this machine and the network; network:
    None of files. Raises Unknown, UsageError.
    """
    for name in asked:
        if name not in RUNTIMES:
            raise Unknown("runtime", name, RUNTIMES)
        if network is None and name != "onnx":
            raise UsageError(
                f"--runtime {name}: ONNX files are measured as they are, by onnx alone"
            )
    return tuple(dict.fromkeys(_suited(network) if name == INT8 else name for name in asked))


def check_provider(name: str, runtimes: Sequence[str]) -> None:
    """Whether all the runtimes can compute with a provider here. Raises Unknown, UsageError."""
    if any(runtime.startswith("onnx") for runtime in runtimes):
        from edge_agent.bench.graph import provider_named

        provider_named(name)
    if "torch" in runtimes and name != "cpu":
        import torch

        if name != "cuda" or not torch.cuda.is_available():
            raise UsageError(
                f"--provider {name}: PyTorch {torch.__version__} here computes with "
                f"cpu{' and cuda' * torch.cuda.is_available()}"
            )


def made_ready(
    network: str, submodel: Submodel, wanted: Sequence[str], batch: int, folder: Path
) -> Target:
    """Writes the weights and graphs that the wanted runtimes need into a folder. Raises
    ExportError, MissingExtra.

    batch: examples of a training step, whose memory is predicted.
    """
    from models.cost import cost

    what = cost(submodel, max(1, batch))
    try:
        made = _written(submodel, wanted, folder)
    except ExportError as error:  # by names of submodels: nobody knows the folder
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


def files(paths: Sequence[Path], provider: str) -> tuple[Target, ...]:
    """ONNX files as targets, each loaded and run once before anything is timed. Raises ExportError,
    Unknown, UsageError for one named twice.
    """
    from edge_agent.bench.graph import check, counted

    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError(f"expected each file once, found {', '.join(map(str, paths))}")
    names, targets = [path.name for path in paths], []
    for path in paths:
        check(path, provider)
        parameters, macs = counted(path)
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


def noise(network: Network, examples: int) -> tuple[Array, Array]:
    """Random raw examples of a network, and what they might teach: one class, values, or the tokens
    of a text (the same or the next).
    """
    rng, shape = np.random.default_rng(0), (examples, *network.inputs)
    if network.objective in ("masked", "next"):
        ids = rng.integers(0, network.outputs, shape)
        return ids, np.roll(ids, -1, axis=1)
    x = rng.standard_normal(shape, np.float32)
    if network.objective == "value":
        return x, rng.standard_normal((examples, network.outputs), np.float32)
    return x, rng.integers(0, network.outputs, examples)


def _suited(network: Network | None) -> str:
    """Ranges found as it runs for texts; else the signs that x86 (unsigned) or ARM (signed)
    multiplies fast.
    """
    if network is not None and network.objective in ("masked", "next"):
        return "onnx-int8-dynamic"
    return (
        "onnx-int8-s8s8" if platform.machine().lower() in ("aarch64", "arm64") else "onnx-int8-u8s8"
    )


def _written(submodel: Submodel, wanted: Sequence[str], folder: Path) -> dict[str, Path]:
    import torch

    from federated.wire import tensors
    from models.families.catalogue import build
    from models.layers.batch_norm import calibrate

    examples = noise(submodel.network, NOISE)[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
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
        from export.graph import export

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
