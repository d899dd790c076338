"""A graph of float32 made one of int8: smaller, and faster where the processor multiplies bytes."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from export.bundle import Kind
from export.verify import INPUT, Array, load
from federated.errors import ExportError, MissingExtra

__all__ = ["quantize"]

BATCH = 32  # examples calibrated at a time
PRODUCTS = ("Conv", "Gemm", "MatMul")  # what takes the time


def quantize(path: Path, kind: Kind, examples: Array, out: Path) -> Path:
    """Writes a graph of `export.graph.export` as int8, and returns its path.

    kind: "int8-u8s8" or "int8-s8s8": activations unsigned or signed, of ranges that the examples had; "int8-dynamic": of ranges found as it
    runs, for graphs without convolutions. examples: real raw ones [n, *inputs] to calibrate on. Weights are signed, per channel; the properties stay.
    Raises ExportError for what cannot be quantised so, or is no graph of ours; DataError for unfit examples; MissingExtra.
    """
    if kind == "fp32":
        raise ExportError(f"{path}: expected a kind of int8 to quantise to, found '{kind}'")
    load(path).predict(examples[:1])  # one of ours, and fit for these
    onnx, tools = _libraries()
    model = onnx.load(path)
    found = {node.op_type for node in model.graph.node} & set(PRODUCTS)
    if not found or (kind == "int8-dynamic" and "Conv" in found):
        wanted = "matrix products and no convolutions" if kind == "int8-dynamic" else "convolutions or matrix products"
        raise ExportError(f"{path}: {kind} is for graphs of {wanted}, found {', '.join(sorted(found)) or 'none'}")
    with tempfile.TemporaryDirectory(prefix="espalier-") as folder, _quiet():
        try:
            made = _dynamic(tools, model, Path(folder)) if kind == "int8-dynamic" else _static(tools, path, kind, examples, Path(folder))
            made = onnx.load(made)
            _same(onnx, model, made)
            onnx.checker.check_model(made, full_check=True)
        except Exception as error:  # the tools' errors share no base class
            raise ExportError(f"{path}: cannot be quantised to {kind}: {type(error).__name__}: {str(error).splitlines()[0]}") from error
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".part")
    partial.write_bytes(made.SerializeToString(deterministic=True))
    return partial.replace(out)


def _static(tools: Any, path: Path, kind: Kind, examples: Array, folder: Path) -> Path:
    prepared, made = folder / "prepared.onnx", folder / "made.onnx"
    tools.shape_inference.quant_pre_process(path, prepared, skip_symbolic_shape=True)
    tools.quantize_static(
        prepared,
        made,
        _Reader(examples),
        per_channel=True,
        activation_type=tools.QuantType.QUInt8 if kind == "int8-u8s8" else tools.QuantType.QInt8,
        weight_type=tools.QuantType.QInt8,
    )
    return made


def _dynamic(tools: Any, model: Any, folder: Path) -> Path:
    made = folder / "made.onnx"
    del model.graph.value_info[:]  # it speaks of the float weights, which the tool refuses to replace
    tools.quantize_dynamic(model, made, per_channel=True, weight_type=tools.QuantType.QInt8)
    return made


class _Reader:
    """The examples, a batch at a time, as the calibration asks for them."""

    def __init__(self, examples: Array) -> None:
        self._batches = iter(examples[start : start + BATCH] for start in range(0, len(examples), BATCH))

    def get_next(self) -> dict[str, Array] | None:
        batch = next(self._batches, None)
        return None if batch is None else {INPUT: batch}

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return ({INPUT: batch} for batch in self._batches)


def _same(onnx: Any, model: Any, made: Any) -> None:
    """Leaves what the tools made with the properties, and the operator sets, of what it was made from."""
    used = {node.domain for node in made.graph.node}
    kept = [entry for entry in made.opset_import if entry.domain in used | {""}]
    del made.opset_import[:]
    made.opset_import.extend(kept)
    made.producer_name, made.producer_version = model.producer_name, model.producer_version
    del made.metadata_props[:]
    made.metadata_props.extend(model.metadata_props)


def _libraries() -> tuple[Any, Any]:
    try:
        import onnx
        import onnx.checker
        from onnxruntime import quantization as tools
        from onnxruntime.quantization import shape_inference  # noqa: F401 (makes it an attribute)
    except ModuleNotFoundError as error:
        raise MissingExtra("quantisation", "export", error.name or "onnx") from error
    return onnx, tools


@contextmanager
def _quiet() -> Iterator[None]:
    """The tools advise on the root logger and warn of their own deprecations; neither is news to whoever exports."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
