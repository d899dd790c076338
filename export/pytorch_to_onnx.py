"""Convert a PyTorch module or program to an ONNX model with PyTorch's own exporter."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from federated.errors import ExportError, require_extra
from federated.runtime.torch_import import pause_collection

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["OPSET", "convert", "import_onnx"]

OPSET = 20
UNTRANSLATED = re.compile(r"No ONNX function found for .*?op='([^']+)'")


def import_onnx() -> Any:
    """Return the `onnx` package. MissingExtra: it, or the exporter's own package, is missing."""
    with require_extra("an export to ONNX", "export"):
        import onnx
        import onnx.checker
        import onnx.helper
        import onnxscript  # noqa: F401 (the exporter requires it)
    _cache_translations()
    return onnx


@functools.cache
def _cache_translations() -> None:
    """Let all exports of this process use one table of translations, and one signature of each
    operator. PyTorch makes a new table for each export, which takes half a second.
    """
    with contextlib.suppress(ImportError, AttributeError):  # private, so it may change
        from torch.onnx._internal.exporter import _registration

        table: Any = _registration.ONNXRegistry
        table.from_torchlib = staticmethod(functools.cache(table.from_torchlib))
    with contextlib.suppress(ImportError, AttributeError):
        from onnxscript import ir

        signature: Any = ir.schemas.OpSignature
        signature.from_op_schema = staticmethod(_cache_signatures(signature.from_op_schema))


def _cache_signatures(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let all nodes with an operator use one signature. The exporter makes a new one for each node,
    which takes a sixth of an export.
    """
    made = dict[tuple[str, str, int], Any]()

    def find(schema: Any) -> Any:
        key = schema.domain, schema.name, schema.since_version
        if key not in made:
            made[key] = make(schema)
        return made[key]

    return find


def convert(
    net: nn.Module | ExportedProgram,
    examples: Sequence[Tensor],
    inputs: Sequence[str],
    outputs: Sequence[str],
    title: str,
    **options: Any,
) -> Any:
    """Return the ONNX model proto of a module or a program, with its weights inside and without
    paths of this machine.

    examples: one per input.
    title: what errors call the module.
    options: of `torch.onnx.export`.
    ExportError: the module cannot be exported. MissingExtra: onnx is not installed.
    """
    import_onnx()
    with _silence(), pause_collection():  # collections take a fifth of an export
        try:
            program = torch.onnx.export(
                net,
                tuple(examples),
                dynamo=True,
                opset_version=OPSET,
                input_names=inputs,
                output_names=outputs,
                external_data=False,
                verbose=False,
                **options,
            )
        except Exception as error:  # a user's network can make torch raise anything
            raise ExportError(f"{title} cannot be exported: {_explain(error)}") from error
    model = program.model_proto  # type: ignore[union-attr]  # None only where dynamo is off
    _strip_local_paths(model)
    return model


def _explain(error: Exception) -> str:
    """Return the operator that has no translation, or else the first line of the error."""
    cause: BaseException | None = error
    while cause is not None:
        if found := UNTRANSLATED.search(str(cause)):
            return f"the operator {found[1]} has no translation to ONNX"
        cause = cause.__cause__
    reason = next(iter(str(error).splitlines()), "no reason given")
    return f"{type(error).__name__}: {reason}"


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silence the exporter's progress output and its own deprecation warnings."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)


def _strip_local_paths(model: Any) -> None:
    """Remove the exporter's stack traces, which contain this machine's paths."""
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
