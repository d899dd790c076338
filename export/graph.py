"""One network as one ONNX file: raw data in, logits or raw values out, weights and normalisation
inside, its origin in its properties.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import logging
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from export.verify import INPUT, OUTPUTS, TOKENS, Array, Output
from federated.errors import DataError, ExportError, MissingExtra
from federated.runtime import files
from models.submodel import Network

__all__ = ["OPSET", "export", "predict", "weights_digest"]

OPSET = 20
GIVEN = ("round", "run", "submodel")  # what only the caller knows


def export(
    net: nn.Module, network: Network, example: Array, path: Path, metadata: Mapping[str, object]
) -> Path:
    """Writes `net` in evaluation mode as an ONNX file and returns its path.

    example: raw data [n >= 2, *inputs], uint8 or float32, int64 for tokens; its dtype becomes that
    of the input, its first axis is left open. metadata: at least run, round and submodel;
    objective, outputs, preprocessing, versions and the digest of the weights are added. A network
    of values gives them in raw units, by the shift and the scale of its record.
    Raises ExportError when the network cannot be exported or the checker refuses the graph,
    DataError for an unfit example, MissingExtra.
    """
    _fit(network, example)
    missing = [key for key in GIVEN if key not in metadata]
    if missing:
        raise ExportError(
            f"{path}: expected metadata with {', '.join(GIVEN)}, found none for "
            f"{', '.join(missing)}"
        )
    onnx = _onnx()
    still = _still(net, network)
    model = _translated(still, OUTPUTS[network.objective], torch.from_numpy(np.array(example)))
    _forget(model)
    onnx.helper.set_model_props(
        model,
        {key: str(value) for key, value in {**metadata, **_described(net, network, onnx)}.items()},
    )
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # checker and shape inference share no base class
        raise ExportError(f"{path}: the exported graph is not valid: {error}") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, model.SerializeToString(deterministic=True))
    return path


def predict(net: nn.Module, network: Network, x: Array) -> Output:
    """What the network itself says of raw data, in evaluation mode, to compare an exported graph
    with; `net` stays as it was.
    """
    with torch.no_grad():
        return _still(net, network)(torch.from_numpy(np.array(x))).numpy()  # type: ignore[no-any-return]


def weights_digest(net: nn.Module) -> str:
    """sha256 over names, dtypes, shapes and bytes of all tensors, by name: the same for every copy
    of the same weights.
    """
    digest = hashlib.sha256()
    for name, value in sorted(net.state_dict().items()):
        array = value.detach().cpu().contiguous().numpy()
        digest.update(f"{name} {array.dtype} {list(array.shape)}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


class Raw(nn.Module):
    """A network of values, its standardised values made raw: value * scale + shift."""

    shift: Tensor
    scale: Tensor

    def __init__(self, net: nn.Module, shift: Sequence[float], scale: Sequence[float]) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("shift", torch.tensor(shift))
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.scale + self.shift  # type: ignore[no-any-return]


def _still(net: nn.Module, network: Network) -> nn.Module:
    """A copy in evaluation mode that gives what its graph is to give."""
    still = copy.deepcopy(net).cpu().eval()
    return (
        Raw(still, network.shift, network.scale).eval()
        if network.shift and network.objective == "value"
        else still
    )


def _fit(network: Network, example: Array) -> None:
    types = ("int64",) if network.objective in TOKENS else ("uint8", "float32")
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


def _onnx() -> Any:
    try:
        import onnx
        import onnx.checker
        import onnx.helper
        import onnxscript  # noqa: F401 (the exporter's own need)
    except ModuleNotFoundError as error:
        raise MissingExtra("an export to ONNX", "export", error.name or "onnx") from error
    return onnx


def _translated(net: nn.Module, output: str, example: Tensor) -> Any:
    """The ONNX model proto, weights inside. A batch of 1 would be taken for a constant: the example
    has at least 2.
    """
    with _quiet():
        try:
            program = torch.onnx.export(
                net,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=[output],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # whatever a network of a user's own makes torch raise
            said = next(iter(str(error).splitlines()), "no reason given")
            raise ExportError(
                f"{type(net).__name__} cannot be exported: {type(error).__name__}: {said}"
            ) from error
    return program.model_proto  # type: ignore[union-attr]  # None only where dynamo is off


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter prints progress and warns of its own deprecations; neither is news to whoever
    exports.
    """
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)


def _forget(model: Any) -> None:
    """Drops what the exporter noted of where it ran: stack traces with the paths of this machine
    have no business in a release.
    """
    for function in [model.graph, *model.functions]:
        function.doc_string = ""
        del function.metadata_props[:]
        for item in [
            *function.node,
            *getattr(function, "value_info", ()),
            *getattr(function, "initializer", ()),
        ]:
            item.doc_string = ""
            del item.metadata_props[:]
    for value in [*model.graph.input, *model.graph.output]:
        del value.metadata_props[:]


def _described(net: nn.Module, network: Network, onnx: Any) -> dict[str, str]:
    units = {
        name: getattr(network, name)
        for name in ("mean", "std", "shift", "scale")
        if network.objective not in TOKENS and getattr(network, name)
    }
    return {
        "objective": network.objective,
        "outputs": str(network.outputs),
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
