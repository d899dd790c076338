"""Export a function of named tensors as an ONNX graph of ONNX's own operators.

PyTorch traces the function, gradients included, into operators below autograd, and its exporter
translates these. ONNX Runtime then folds what is constant, and inlines the exporter's functions,
which are not ONNX operators.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel

from export.pytorch_to_onnx import convert, import_onnx
from export.trainstep.named_tensor_function import GraphFunction
from export.trainstep.recomputed_activations import recompute_activations
from export.trainstep.recomputed_attention import RecomputedAttention
from export.trainstep.traced_program import leave_decomposed, make_program, trace
from federated.errors import ExportError
from federated.onnx_graph_contents import refuse_foreign_operators

__all__ = ["export_graph"]


def export_graph(function: GraphFunction) -> bytes:
    """Return the graph of a function as an ONNX file, with its properties.

    ExportError: an operator has no translation, or the graph is not valid. MissingExtra: onnx is
        not installed.
    """
    onnx = import_onnx()
    # separate copies: PyTorch merges inputs that are the same tensor
    examples = [value.clone() for value in function.inputs.values()]
    traced, outputs = trace_function(function, examples)
    inputs = list(function.inputs)
    with leave_decomposed():
        raw = convert(
            make_program(traced), examples, inputs, outputs, function.title, optimize=False
        )
    model = fold_constants(onnx, raw)
    used = [one for one in model.opset_import if one.domain == ""]
    del model.opset_import[:]
    model.opset_import.extend(used)
    onnx.helper.set_model_props(model, dict(function.properties))
    data: bytes = model.SerializeToString(deterministic=True)
    refuse_foreign_operators(function.title, data)
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # checker and shape inference share no base class
        raise ExportError(f"{function.title}: the exported graph is not valid: {error}") from error
    return data


def trace_function(
    function: GraphFunction, examples: Sequence[Tensor]
) -> tuple[GraphModule, list[str]]:
    """Return the function as a graph of operators, and the names of its outputs.

    ExportError: it draws random numbers that are not inputs, or PyTorch cannot trace it.
    """
    names, outputs = list(function.inputs), list[str]()

    def compute(*tensors: Tensor) -> Sequence[Tensor]:
        found = function.compute(dict(zip(names, tensors, strict=True)))
        outputs[:] = found
        return tuple(found.values())

    # the gradient of fused attention is one operator, which ONNX lacks
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH), RecomputedAttention():
        warnings.simplefilter("ignore")
        try:
            traced = trace(compute, examples)
        except Exception as error:  # a user's network can raise anything
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ExportError(f"{function.title} cannot be traced: {reason}") from error
    if "loss" in outputs:
        recompute_activations(traced, outputs.index("loss"))
    refuse_draws(function.title, traced)
    return traced, outputs


def refuse_draws(title: str, traced: GraphModule) -> None:
    """Raise ExportError if a graph draws random numbers, whose results nobody could repeat."""
    for node in traced.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            raise ExportError(
                f"{title}: expected dropout as the only random layer, found {node.target}: train "
                "this network with PyTorch"
            )


def fold_constants(onnx: Any, model: Any) -> Any:
    """Return the model with constants computed and functions inlined."""
    with tempfile.TemporaryDirectory(prefix="espalier-") as folder:
        path = Path(folder) / "graph.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 3  # errors only
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return onnx.load(path)
