"""Export one network to one ONNX file: raw data in, logits or raw values out, with weights and
normalisation inside and its origin in its properties.
"""

from __future__ import annotations

import copy
import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from export.graph_metadata import describe_graph, describe_interface
from export.onnx_session import INPUT, OUTPUTS, Array, Output
from export.pytorch_to_onnx import OPSET, convert, import_onnx
from federated.errors import DataError, ExportError
from federated.runtime import atomic_files
from models.submodel import Network

__all__ = ["export", "predict", "weights_digest"]

GIVEN = ("round", "run", "submodel")  # metadata that the caller must provide


def export(
    net: nn.Module,
    network: Network,
    example: Array,
    path: Path,
    metadata: Mapping[str, object],
    classes: Sequence[str] = (),
) -> Path:
    """Write `net` in evaluation mode as an ONNX file and return its path.

    example: raw data [n >= 2, *inputs], uint8 or float32, int64 for tokens. The graph's input has
        its dtype; its first axis is variable.
    metadata: at least run, round and submodel; objective, outputs, the vocabulary of texts,
        preprocessing, versions and the weights' digest are added, and `input` and `output` (see
        `export.graph_metadata`)
    classes: their names in order, if known

    A network of values returns them in raw units, with the shift and scale of its record.

    ExportError: the network cannot be exported, or the checker rejects the graph. DataError: the
        example does not fit. MissingExtra: onnx is not installed.
    """
    _check_example(network, example)
    missing = [key for key in GIVEN if key not in metadata]
    if missing:
        raise ExportError(
            f"{path}: expected metadata with {', '.join(GIVEN)}, found none for "
            f"{', '.join(missing)}"
        )
    onnx = import_onnx()
    still = _copy_for_evaluation(net, network)
    # at least 2 rows, since the exporter would treat a batch of 1 as constant
    shown, title = torch.from_numpy(np.array(example)), type(still).__name__
    model = convert(
        still,
        [shown],
        [INPUT],
        [OUTPUTS[network.objective]],
        title,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    interface = describe_interface(network, example.dtype.name, classes)
    found = {**metadata, **_make_properties(net, network, onnx), **interface}
    properties = {key: str(value) for key, value in found.items()}
    onnx.helper.set_model_props(model, properties)
    describe_graph(model.graph, properties)
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # checker and shape inference share no base class
        raise ExportError(f"{path}: the exported graph is not valid: {error}") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_files.write(path, model.SerializeToString(deterministic=True))
    return path


def predict(net: nn.Module, network: Network, x: Array) -> Output:
    """Return the network's own outputs for raw data, in evaluation mode, to compare an exported
    graph with; `net` is unchanged.
    """
    with torch.no_grad():
        return _copy_for_evaluation(net, network)(torch.from_numpy(np.array(x))).numpy()  # type: ignore[no-any-return]


def weights_digest(net: nn.Module) -> str:
    """Return the sha256 over names, dtypes, shapes and bytes of all tensors, sorted by name;
    equal for all copies of the same weights.
    """
    digest = hashlib.sha256()
    for name, value in sorted(net.state_dict().items()):
        array = value.detach().cpu().contiguous().numpy()
        digest.update(f"{name} {array.dtype} {list(array.shape)}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


class RawUnits(nn.Module):
    """A network of values with outputs in raw units: value * scale + shift."""

    shift: Tensor
    scale: Tensor

    def __init__(self, net: nn.Module, shift: Sequence[float], scale: Sequence[float]) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("shift", torch.tensor(shift))
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.scale + self.shift  # type: ignore[no-any-return]


def _copy_for_evaluation(net: nn.Module, network: Network) -> nn.Module:
    """Return a copy in evaluation mode with the outputs that the graph must have."""
    still = copy.deepcopy(net).cpu().eval()
    return (
        RawUnits(still, network.shift, network.scale).eval()
        if network.shift and network.objective == "value"
        else still
    )


def _check_example(network: Network, example: Array) -> None:
    types = ("int64",) if network.tokens else ("uint8", "float32")
    if (
        example.dtype.name not in types
        or tuple(example.shape[1:]) != network.inputs
        or len(example) < 2
    ):
        wanted = f"at least 2 of {' or '.join(types)} {list(network.inputs)}"
        raise DataError(
            f"example to export with: expected {wanted}, found {example.dtype} "
            f"{list(example.shape)}"
        )


def _make_properties(net: nn.Module, network: Network, onnx: Any) -> dict[str, str]:
    names = ("shift", "scale") if network.tokens else ("mean", "std", "shift", "scale")
    units = {name: getattr(network, name) for name in names if getattr(network, name)}
    return {
        "objective": network.objective,
        "outputs": str(network.outputs),
        **({"vocabulary": str(network.vocabulary)} if network.vocabulary else {}),
        "preprocessing": json.dumps({"inside": True, **units}),
        "versions": json.dumps(
            {
                "onnx": onnx.__version__,
                "opset": OPSET,
                "python": platform.python_version(),
                "torch": torch.__version__,
            }
        ),
        "weights": weights_digest(net),
    }
