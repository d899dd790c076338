"""A graph of float32 made one of int8: smaller, and faster where the processor multiplies bytes.

Static: each activation has one range, found on real examples as its smallest and largest value;
weights have one per channel. The raw input and its normalisation stay as they are, and so do the
units of values at the end. A convolutional network is int8 throughout; of one with attention only
the products are, since what lies between them (softmax, layer norm, gelu) loses more than it gains.
Dynamic: ranges are found as the graph runs, which pays for matrices alone.
"""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime

from export.bundle import Kind
from export.verify import INPUT, Array, load
from federated.errors import ExportError, MissingExtra
from federated.runtime import files

__all__ = ["kinds", "quantize"]

BATCH = 32  # examples calibrated at a time
PRODUCTS = ("Conv", "Gemm", "MatMul")
TABLES = ("Gather",)  # of embeddings
UNITS = ("Add", "Mul")
ATTENTION = "Softmax"  # no network of ours ends in one: its logits are the answer


def kinds(path: Path) -> tuple[Kind, ...]:
    """What a graph can be made: dynamic, too, where it has attention. Raises ExportError,
    MissingExtra.
    """
    onnx, _ = _libraries()
    static: tuple[Kind, ...] = ("int8-u8s8", "int8-s8s8")
    return (*static, "int8-dynamic") if ATTENTION in _operators(onnx, path) else static


def quantize(path: Path, kind: Kind, examples: Array, out: Path) -> Path:
    """Writes a graph of `export.graph.export` as int8, and returns its path.

    kind: "int8-u8s8" or "int8-s8s8": activations unsigned or signed, of ranges that the examples
    had; "int8-dynamic": of ranges found as it runs, for graphs with attention. examples: real raw
    ones [n >= 1, *inputs] to calibrate on. The properties stay, and say what was done. Raises
    ExportError for what cannot be quantised so, or is no graph of ours; DataError for unfit
    examples; MissingExtra.
    """
    if kind == "fp32":
        raise ExportError(f"{path}: expected a kind of int8 to quantise to, found '{kind}'")
    load(path).predict(examples[:1])  # one of ours, and fit for these
    onnx, _ = _libraries()
    found = _operators(onnx, path)
    if kind == "int8-dynamic" and ATTENTION not in found:
        raise ExportError(f"{path}: {kind} is for graphs with attention: others are slower by it")
    if not found & set(PRODUCTS) or not len(examples):
        raise ExportError(
            f"{path}: expected products and examples to quantise, found "
            f"{'no products' if len(examples) else 'no examples'}"
        )
    with tempfile.TemporaryDirectory(prefix="espalier-") as folder, _quiet():
        try:
            made = _made(path, kind, examples, Path(folder), attention=ATTENTION in found)
            seen = 0 if kind == "int8-dynamic" else len(examples)
            _inherit(
                onnx,
                made,
                path,
                {"kind": kind, "examples": seen, "onnxruntime": onnxruntime.__version__},
            )
            onnx.checker.check_model(made, full_check=True)
        except Exception as error:  # the tools' errors share no base class
            raise ExportError(
                f"{path}: cannot be quantised to {kind}: {type(error).__name__}: "
                f"{' '.join(str(error).split())[:200]}"
            ) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write(out, made.SerializeToString(deterministic=True))
    return out


def _made(path: Path, kind: Kind, examples: Array, folder: Path, *, attention: bool) -> Any:
    """The quantised graph. folder: for files of the tools; attention: whether the graph has it."""
    onnx, tools = _libraries()
    prepared, out = folder / "prepared.onnx", folder / "made.onnx"
    # folds what is constant, such as a weight's new shape
    tools.shape_inference.quant_pre_process(path, prepared, skip_symbolic_shape=True)
    weights = {"per_channel": True, "weight_type": tools.QuantType.QInt8}
    if kind == "int8-dynamic":
        model = onnx.load(prepared)
        # it speaks of the float weights, which the tool then fails to replace
        del model.graph.value_info[:]
        tools.quantize_dynamic(
            model, out, op_types_to_quantize=["Gemm", "MatMul", *TABLES], **weights
        )
    else:
        activations = tools.QuantType.QUInt8 if kind == "int8-u8s8" else tools.QuantType.QInt8
        only = [*PRODUCTS, *TABLES] if attention else None
        kept = _units(onnx.load(prepared).graph)
        tools.quantize_static(
            prepared,
            out,
            _Reader(examples),
            activation_type=activations,
            op_types_to_quantize=only,
            nodes_to_exclude=kept,
            **weights,
        )
    return onnx.load(out)


def _units(graph: Any) -> list[str]:
    """The nodes that give values their raw units at the end: one range for values of unlike units
    would leave the smallest without digits.
    """
    makers = {output: node for node in graph.node for output in node.output}
    constants = {tensor.name for tensor in graph.initializer}
    found, node = list[str](), makers.get(graph.output[0].name)
    while (
        node is not None
        and node.op_type in UNITS
        and (inner := [name for name in node.input if name not in constants])
    ):
        if len(inner) > 1:
            break
        found.append(node.name)
        node = makers.get(inner[0])
    return found


class _Reader:
    """The examples, a batch at a time, as the calibration asks for them."""

    def __init__(self, examples: Array) -> None:
        self._batches = iter(
            [{INPUT: examples[start : start + BATCH]} for start in range(0, len(examples), BATCH)]
        )

    def get_next(self) -> dict[str, Array] | None:
        return next(self._batches, None)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return self._batches


def _inherit(onnx: Any, made: Any, path: Path, done: dict[str, object]) -> None:
    """Gives what the tools made the properties of what it was made from, and leaves it the operator
    sets that it uses.
    """
    model = onnx.load(path)
    used = {node.domain for node in made.graph.node} | {""}
    kept = [entry for entry in made.opset_import if entry.domain in used]
    del made.opset_import[:], made.metadata_props[:]
    made.opset_import.extend(kept)
    made.producer_name, made.producer_version = model.producer_name, model.producer_version
    properties = {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(made, {**properties, "quantisation": json.dumps(done)})


def _operators(onnx: Any, path: Path) -> set[str]:
    try:
        return {node.op_type for node in onnx.load(path).graph.node}
    except Exception as error:  # the parser's errors share no base class
        raise ExportError(
            f"{path}: expected an ONNX file, found one that cannot be read: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error


def _libraries() -> tuple[Any, Any]:
    try:
        import onnx
        import onnx.checker
        import onnx.helper
        from onnxruntime import quantization as tools
        from onnxruntime.quantization import shape_inference  # noqa: F401 (makes it an attribute)
    except ModuleNotFoundError as error:
        raise MissingExtra("quantisation", "export", error.name or "onnx") from error
    return onnx, tools


@contextmanager
def _quiet() -> Iterator[None]:
    """The tools advise on the root logger and warn of their own deprecations; neither is news to
    whoever exports.
    """
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
