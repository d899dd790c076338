"""What an exported graph costs: a count over the file itself, which owes nothing to `models.cost`.

The exporter folds a batch norm into the convolution or linear before it, and leaves statistics
beside the others: so a file has other parameters than its network, but the same weights,
multiply-adds and function. Two tensors that are equal to the last bit are stored, and counted,
once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from federated.errors import ExportError, MissingExtra

__all__ = ["Count", "count"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Count:
    """parameters: floating-point numbers stored in the file. weights: those of them that multiply,
    in convolutions and matrix products.

    macs: multiply-adds of both for one example.
    """

    parameters: int
    weights: int
    macs: int


def count(path: Path) -> Count:
    """Counts one example's pass through an ONNX file. Raises ExportError for what is no ONNX file,
    or of unknown shapes; MissingExtra.
    """
    onnx = _onnx()
    try:
        model = onnx.inliner.inline_local_functions(onnx.load(path))
        shapes = _shapes(onnx, model)
        stored = {
            value.name: math.prod(value.dims)
            for value in model.graph.initializer
            if value.data_type in _floating(onnx)
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
        origin(name, model.graph) for node in products for name in node.input[:2]
    } & stored.keys()
    return Count(sum(stored.values()), sum(stored[name] for name in weights), macs)


def origin(name: str, graph: Any) -> str:
    """The value that another is a mere view of."""
    makers = {
        output: node for node in graph.node if node.op_type in VIEWS for output in node.output
    }
    while name in makers:
        name = makers[name].input[0]
    return name


def convolution(node: Any, shapes: Mapping[str, Shape]) -> int:
    """Weight [O, I/groups, *kernel]: each number of the output is a sum over one filter."""
    return math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])


def transposed(node: Any, shapes: Mapping[str, Shape]) -> int:
    """Weight [I, O/groups, *kernel]: each number of the input is multiplied with one filter."""
    return math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])


def product(node: Any, shapes: Mapping[str, Shape]) -> int:
    """Of matrices [..., M, K] and [..., K, N]."""
    return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]


def general(node: Any, shapes: Mapping[str, Shape]) -> int:
    """Of matrices [M, K] and [K, N], the first perhaps turned over; what is added afterwards is not
    counted.
    """
    turned = any(a.name == "transA" and a.i for a in node.attribute)
    return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][0 if turned else 1]


def einsum(node: Any, shapes: Mapping[str, Shape]) -> int:
    """One for each value of all the letters together."""
    equation = next(a.s.decode() for a in node.attribute if a.name == "equation")
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    sizes = {
        letter: size
        for term, name in zip(terms, node.input, strict=True)
        for letter, size in zip(term, shapes[name], strict=True)
    }
    return math.prod(sizes.values())


MACS: dict[str, Callable[[Any, Mapping[str, Shape]], int]] = {
    "Conv": convolution,
    "ConvTranspose": transposed,
    "Einsum": einsum,
    "Gemm": general,
    "MatMul": product,
}


VIEWS = ("Cast", "DequantizeLinear", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


def _shapes(onnx: Any, model: Any) -> dict[str, Shape]:
    """Shape of every value that is known, for a batch of 1."""
    del model.graph.value_info[:]  # noted for any batch
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


def _floating(onnx: Any) -> tuple[int, ...]:
    return (
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
        onnx.TensorProto.DOUBLE,
    )


def _onnx() -> Any:
    try:
        import onnx
        import onnx.inliner
        import onnx.shape_inference
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "a count of a graph's multiply-adds", "export", error.name or "onnx"
        ) from error
    return onnx
