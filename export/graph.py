"""One network as one ONNX file: raw data in, logits out, weights and normalisation inside, its origin in its properties."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import logging
import platform
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from export.verify import INPUT, OUTPUT, Array
from federated.errors import DataError, ExportError, MissingExtra
from models.submodel import Network

__all__ = ["OPSET", "export", "logits", "weights_digest"]

OPSET = 20
GIVEN = ("round", "run", "submodel")  # what only the caller knows


def export(net: nn.Module, network: Network, example: Array, path: Path, metadata: Mapping[str, object]) -> Path:
    """Writes `net` in evaluation mode as an ONNX file and returns its path.

    example: raw data [n >= 2, *inputs], uint8 or float32; its dtype becomes that of the input, its first axis is left open.
    metadata: at least run, round and submodel; classes, preprocessing, versions and the digest of the weights are added.
    Raises ExportError when the network cannot be exported or the checker refuses the graph, DataError for an unfit example, MissingExtra.
    """
    _fit(network, example)
    missing = [key for key in GIVEN if key not in metadata]
    if missing:
        raise ExportError(f"{path}: expected metadata with {', '.join(GIVEN)}, found none for {', '.join(missing)}")
    onnx = _onnx()
    still = copy.deepcopy(net).cpu().eval()
    model = _translated(still, torch.from_numpy(np.array(example)))
    _forget(model)
    onnx.helper.set_model_props(model, {key: str(value) for key, value in {**metadata, **_described(still, network, onnx)}.items()})
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # checker and shape inference share no base class
        raise ExportError(f"{path}: the exported graph is not valid: {error}") from error
    partial = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(model.SerializeToString(deterministic=True))
    return partial.replace(path)


def logits(net: nn.Module, x: Array) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What the network itself says of raw data, in evaluation mode, to compare an exported graph with; `net` stays as it was."""
    still = copy.deepcopy(net).cpu().eval()
    with torch.no_grad():
        return still(torch.from_numpy(np.array(x))).numpy()  # type: ignore[no-any-return]


def weights_digest(net: nn.Module) -> str:
    """sha256 over names, dtypes, shapes and bytes of all tensors, by name: the same for every copy of the same weights."""
    digest = hashlib.sha256()
    for name, value in sorted(net.state_dict().items()):
        array = value.detach().cpu().contiguous().numpy()
        digest.update(f"{name} {array.dtype} {list(array.shape)}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _fit(network: Network, example: Array) -> None:
    if example.dtype not in (np.uint8, np.float32) or tuple(example.shape[1:]) != network.inputs or len(example) < 2:
        raise DataError(
            f"example to export with: expected at least 2 of uint8 or float32 {list(network.inputs)}, found {example.dtype} {list(example.shape)}"
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


def _translated(net: nn.Module, example: Tensor) -> Any:
    """The ONNX model proto, weights inside. A batch of 1 would be taken for a constant: the example has at least 2."""
    with _quiet():
        try:
            program = torch.onnx.export(
                net,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # whatever a network of a user's own makes torch raise
            raise ExportError(f"{type(net).__name__} cannot be exported: {type(error).__name__}: {str(error).splitlines()[0]}") from error
    return program.model_proto  # type: ignore[union-attr]  # None only where dynamo is off


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter prints progress and warns of its own deprecations; neither is news to whoever exports."""
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
    """Drops what the exporter noted of where it ran: stack traces with the paths of this machine have no business in a release."""
    for function in [model.graph, *model.functions]:
        function.doc_string = ""
        del function.metadata_props[:]
        for item in [*function.node, *getattr(function, "value_info", ()), *getattr(function, "initializer", ())]:
            item.doc_string = ""
            del item.metadata_props[:]
    for value in [*model.graph.input, *model.graph.output]:
        del value.metadata_props[:]


def _described(net: nn.Module, network: Network, onnx: Any) -> dict[str, str]:
    return {
        "classes": str(network.outputs),
        "preprocessing": json.dumps({"inside": True, "mean": network.mean, "std": network.std}),
        "versions": json.dumps({"onnx": onnx.__version__, "opset": OPSET, "python": platform.python_version(), "torch": torch.__version__}),
        "weights": weights_digest(net),
    }
