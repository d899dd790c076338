"""Count an exported graph's cost from the file itself, independently of `models.cost`.

The exporter folds a batch norm into the preceding convolution or linear layer, and stores the
statistics of other norms. A file therefore has other parameters than its network, but the same
weights, multiply-adds and function. Identical tensors are stored, and counted, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from federated.errors import ExportError, require_extra

__all__ = ["Count", "count"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Count:
    """Cost of a graph.

    parameters: floating-point numbers stored in the file
    weights: those used in convolutions and matrix products
    macs: multiply-adds of convolutions and matrix products for one example
    """

    parameters: int
    weights: int
    macs: int


def count(path: Path) -> Count:
    """Count one example's pass through an ONNX file.

    ExportError: not an ONNX file, or its shapes are unknown. MissingExtra: onnx is not installed.
    """
    onnx = _import_onnx()
    try:
        model = onnx.inliner.inline_local_functions(onnx.load(path))
        shapes = _infer_shapes(onnx, model)
        stored = {
            value.name: math.prod(value.dims)
            for value in model.graph.initializer
            if value.data_type in _list_floating(onnx)
        }
        products = [node for node in model.graph.node if node.op_type in MACS]
        macs = sum(MACS[node.op_type](node, shapes) for node in products)
    except KeyError as error:
        raise ExportError(
            f"{path}: expected known shapes throughout, found none for {error}"
        ) from error
    except Exception as error:  # parser, inliner and shape inference share no base class
        raise ExportError(
            f"{path}: cannot be counted: {' '.join(str(error).split())[:300]}"
        ) from error
    weights = {
        find_origin(name, model.graph) for node in products for name in node.input[:2]
    } & stored.keys()
    return Count(sum(stored.values()), sum(stored[name] for name in weights), macs)


def find_origin(name: str, graph: Any) -> str:
    """Return the value that another is a view of."""
    makers = {
        output: node for node in graph.node if node.op_type in VIEWS for output in node.output
    }
    while name in makers:
        name = makers[name].input[0]
    return name


def count_convolution(node: Any, shapes: Mapping[str, Shape]) -> int:
    """Count weight [O, I/groups, *kernel]: each output number is a sum over one filter."""
    return math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])


def count_transposed(node: Any, shapes: Mapping[str, Shape]) -> int:
    """Count weight [I, O/groups, *kernel]: each input number is multiplied with one filter."""
    return math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])


def count_product(node: Any, shapes: Mapping[str, Shape]) -> int:
    """Count matrices [..., M, K] and [..., K, N]."""
    return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]


def count_gemm(node: Any, shapes: Mapping[str, Shape]) -> int:
    """Count matrices [M, K] and [K, N], the first possibly transposed, without the addition."""
    turned = any(a.name == "transA" and a.i for a in node.attribute)
    return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][0 if turned else 1]


def count_einsum(node: Any, shapes: Mapping[str, Shape]) -> int:
    """Count one multiply-add per combination of all indices."""
    equation = next(a.s.decode() for a in node.attribute if a.name == "equation")
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    sizes = {
        letter: size
        for term, name in zip(terms, node.input, strict=True)
        for letter, size in zip(term, shapes[name], strict=True)
    }
    return math.prod(sizes.values())


MACS: dict[str, Callable[[Any, Mapping[str, Shape]], int]] = {
    "Conv": count_convolution,
    "ConvTranspose": count_transposed,
    "Einsum": count_einsum,
    "Gemm": count_gemm,
    "MatMul": count_product,
}


VIEWS = ("Cast", "DequantizeLinear", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


def _infer_shapes(onnx: Any, model: Any) -> dict[str, Shape]:
    """Return all known shapes, for a batch of 1."""
    del model.graph.value_info[:]  # recorded for a variable batch
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    found = {value.name: tuple(value.dims) for value in graph.initializer}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        axes = value.type.tensor_type.shape.dim
        if all(axis.HasField("dim_value") for axis in axes):
            found[value.name] = tuple(axis.dim_value for axis in axes)
    return found


def _list_floating(onnx: Any) -> tuple[int, ...]:
    return (
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
        onnx.TensorProto.DOUBLE,
    )


def _import_onnx() -> Any:
    with require_extra("a count of a graph's multiply-adds", "export"):
        import onnx
        import onnx.inliner
        import onnx.shape_inference
    return onnx
