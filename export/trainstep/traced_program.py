"""Trace a function, and return the program that PyTorch's exporter translates.

Given the traced graph alone, the exporter would trace it again to capture it, and more than once to
replace operators that change tensors in place or that ONNX lacks, which takes three quarters of an
export. Here, the first trace replaces them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from export.trainstep.decompositions.table import DECOMPOSITIONS
from federated.errors import ExportError

__all__ = ["leave_decomposed", "make_program", "trace"]

aten = torch.ops.aten

TESTED = "2.13"  # version whose private parts are known to be as this module needs them


def trace(compute: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]) -> GraphModule:
    """Return a function as a graph of operators that ONNX has, as far as they are known, and that
    change no tensor in place. Raises ExportError if this version of PyTorch lacks what that needs.
    """
    with need_parts():
        from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
    tracing = make_fx(
        dispatch_functionalize(compute, FunctionalTensorMode()),
        decomposition_table=list_decompositions(),
        tracing_mode="fake",
        _allow_non_fake_inputs=True,  # the network's constants
    )
    traced: GraphModule = tracing(*examples)
    graph: Any = traced.graph
    for node in graph.find_nodes(op="call_function", target=aten.detach_.default):
        node.replace_all_uses_with(node.args[0])  # a constant of the function's own
        graph.erase_node(node)
    graph.eliminate_dead_code()
    traced.recompile()
    return traced


def list_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of operators: this project's, or else PyTorch's of those that its
    exporter does not translate. Raises ExportError.
    """
    with need_parts():
        from torch.onnx._internal.exporter import _decomp, _registration

        registry = _registration.ONNXRegistry.from_torchlib()
        translated = set(_decomp.get_onnx_implemented_overloads(registry))
        theirs: dict[Any, Callable[..., Any]] = _decomp.create_onnx_friendly_decomposition_table(
            translated
        )
    ours = {name: try_first(one, theirs.get(name)) for name, one in DECOMPOSITIONS.items()}
    return {**theirs, **ours}


def try_first(one: Callable[..., Any], other: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a decomposition that leaves to another one, if any, what the first does not
    implement.
    """

    def decompose(*args: Any, **options: Any) -> Any:
        found = one(*args, **options)
        return other(*args, **options) if found is NotImplemented and other else found

    return decompose


def make_program(traced: GraphModule) -> ExportedProgram:
    """Return a traced graph as a program, which has the graph's constants as inputs."""
    graph: Any = traced.graph
    constants = dict[str, Any]()
    given = graph.find_nodes(op="placeholder")
    inputs = [InputSpec(InputKind.USER_INPUT, TensorArgument(one.name), None) for one in given]
    for node in graph.find_nodes(op="get_attr"):
        with graph.inserting_before(given[0]):
            constant = graph.placeholder(node.name)
        value = constants[constant.name] = getattr(traced, node.target)
        constant.meta["val"] = given[0].meta["val"].fake_mode.from_tensor(value)
        name = TensorArgument(constant.name)
        inputs.insert(len(constants) - 1, InputSpec(InputKind.CONSTANT_TENSOR, name, name.name))
        node.replace_all_uses_with(constant)
        graph.erase_node(node)
    outputs = [
        OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(one.name), None)
        for one in graph.output_node().args[0]
    ]
    return ExportedProgram(
        root=nn.Module(),
        graph=graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict={},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("")],
        constants=constants,
    )


@contextmanager
def leave_decomposed() -> Iterator[None]:
    """Let PyTorch's exporter translate programs as they are, without a trace that decomposes their
    operators. Raises ExportError if this version of PyTorch does not allow that.
    """
    with need_parts():
        from torch.onnx._internal.exporter import _fx_passes

        passes: Any = _fx_passes
        before = passes.decompose_with_registry
    passes.decompose_with_registry = lambda program, registry: program
    try:
        yield
    finally:
        passes.decompose_with_registry = before


@contextmanager
def need_parts() -> Iterator[None]:
    """Raise ExportError if this version of PyTorch lacks a private part, which may change."""
    try:
        yield
    except (ImportError, AttributeError, TypeError) as error:
        raise ExportError(
            f"PyTorch {torch.__version__} differs from the versions that training graphs can be "
            f"exported with ({error}): install PyTorch {TESTED}"
        ) from error
