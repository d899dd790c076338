"""Quantise a float32 graph to int8: smaller, and faster on processors with fast int8 arithmetic.

Static: each activation has one range, its smallest and largest value on real examples; weights have
    one range per channel. The raw input, its normalisation and the final conversion of values to
    raw units stay in float32. A convolutional network is entirely int8. In a network with attention
    only the matrix products are: quantising the operations between them (softmax, layer norm, gelu)
    loses more than it gains.
Dynamic: ranges are found at run time, which is only worthwhile for matrix products.
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

from export.onnx_session import INPUT, Array, load
from export.release_reader import Kind
from federated.errors import ExportError, require_extra
from federated.runtime import atomic_files

__all__ = ["available_kinds", "quantize"]

BATCH = 32  # examples per calibration batch
PRODUCTS = ("Conv", "Gemm", "MatMul")
TABLES = ("Gather",)  # lookups in embeddings
UNITS = ("Add", "Mul")
ATTENTION = "Softmax"  # no exported network ends in a softmax: its outputs are logits


def available_kinds(path: Path) -> tuple[Kind, ...]:
    """Return the int8 kinds that a graph supports; dynamic only with attention. Raises
    ExportError, MissingExtra.
    """
    onnx, _ = _import_libraries()
    static: tuple[Kind, ...] = ("int8-u8s8", "int8-s8s8")
    return (*static, "int8-dynamic") if ATTENTION in _list_operators(onnx, path) else static


def quantize(path: Path, kind: Kind, examples: Array, out: Path) -> Path:
    """Write a graph of `export.onnx_export.export` as int8 and return its path.

    kind: "int8-u8s8" or "int8-s8s8": unsigned or signed activations with ranges found on the
        examples; "int8-dynamic": ranges found at run time, for graphs with attention
    examples: real raw examples [n >= 1, *inputs] to calibrate on

    The graph's properties are kept, with a record of the quantisation.

    ExportError: the graph cannot be quantised this way, or was not exported by this project.
        DataError: the examples do not fit. MissingExtra: onnx is not installed.
    """
    if kind == "fp32":
        raise ExportError(f"{path}: expected a kind of int8 to quantise to, found '{kind}'")
    load(path).predict(examples[:1])  # checks the graph and the examples
    onnx, _ = _import_libraries()
    found = _list_operators(onnx, path)
    if kind == "int8-dynamic" and ATTENTION not in found:
        raise ExportError(f"{path}: {kind} slows down graphs without attention; use another kind")
    if not found & set(PRODUCTS) or not len(examples):
        raise ExportError(
            f"{path}: expected matrix products and examples to quantise, found "
            f"{'no products' if len(examples) else 'no examples'}"
        )
    with tempfile.TemporaryDirectory(prefix="espalier-") as folder, _silence():
        try:
            made = _quantize_model(path, kind, examples, Path(folder), attention=ATTENTION in found)
            seen = 0 if kind == "int8-dynamic" else len(examples)
            _copy_properties(
                onnx,
                made,
                path,
                {"kind": kind, "examples": seen, "onnxruntime": onnxruntime.__version__},
            )
            onnx.checker.check_model(made, full_check=True)
        except Exception as error:  # the libraries' errors share no base class
            raise ExportError(
                f"{path}: cannot be quantised to {kind}: {type(error).__name__}: "
                f"{' '.join(str(error).split())[:200]}"
            ) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    atomic_files.write(out, made.SerializeToString(deterministic=True))
    return out


def _quantize_model(
    path: Path, kind: Kind, examples: Array, folder: Path, *, attention: bool
) -> Any:
    """Return the quantised graph.

    folder: for temporary files
    attention: whether the graph has attention
    """
    onnx, tools = _import_libraries()
    prepared, out = folder / "prepared.onnx", folder / "made.onnx"
    # folds constants, such as a reshaped weight
    tools.shape_inference.quant_pre_process(path, prepared, skip_symbolic_shape=True)
    weights = {"per_channel": True, "weight_type": tools.QuantType.QInt8}
    if kind == "int8-dynamic":
        model = onnx.load(prepared)
        # it refers to the float weights, which quantize_dynamic then fails to replace
        del model.graph.value_info[:]
        tools.quantize_dynamic(
            model, out, op_types_to_quantize=["Gemm", "MatMul", *TABLES], **weights
        )
    else:
        activations = tools.QuantType.QUInt8 if kind == "int8-u8s8" else tools.QuantType.QInt8
        only = [*PRODUCTS, *TABLES] if attention else None
        kept = _find_unit_nodes(onnx.load(prepared).graph)
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


def _find_unit_nodes(graph: Any) -> list[str]:
    """Return the nodes that convert values to raw units at the end: a shared range for values of
    different units would leave the smallest without precision.
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
    """Feed the examples to the calibration in batches."""

    def __init__(self, examples: Array) -> None:
        self._batches = iter(
            [{INPUT: examples[start : start + BATCH]} for start in range(0, len(examples), BATCH)]
        )

    def get_next(self) -> dict[str, Array] | None:
        return next(self._batches, None)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return self._batches


def _copy_properties(onnx: Any, made: Any, path: Path, done: dict[str, object]) -> None:
    """Copy the properties and doc strings of the original graph to the quantised one, and keep only
    the operator sets that it uses.
    """
    model = onnx.load(path)
    used = {node.domain for node in made.graph.node} | {""}
    kept = [entry for entry in made.opset_import if entry.domain in used]
    del made.opset_import[:], made.metadata_props[:]
    made.opset_import.extend(kept)
    made.producer_name, made.producer_version = model.producer_name, model.producer_version
    properties = {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(made, {**properties, "quantisation": json.dumps(done)})
    made.graph.doc_string = model.graph.doc_string
    for old, new in (
        (model.graph.input, made.graph.input),
        (model.graph.output, made.graph.output),
    ):
        new[0].doc_string = old[0].doc_string


def _list_operators(onnx: Any, path: Path) -> set[str]:
    try:
        return {node.op_type for node in onnx.load(path).graph.node}
    except Exception as error:  # the parser's errors share no base class
        raise ExportError(
            f"{path}: not a valid ONNX file: {' '.join(str(error).split())[:300]}"
        ) from error


def _import_libraries() -> tuple[Any, Any]:
    with require_extra("quantisation", "export"):
        import onnx
        import onnx.checker
        import onnx.helper
        from onnxruntime import quantization as tools
        from onnxruntime.quantization import shape_inference  # noqa: F401 (makes it an attribute)
    return onnx, tools


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the libraries' advice on the root logger and their own deprecation warnings."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
