"""Load the results of runs, predict with them, and export submodels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from espalier.argument_checks import check_is, check_path, check_submodel, read_array, read_tensors
from espalier.networks import SOURCES
from espalier.passed_object_names import name_data
from federated.errors import ArgumentError, UsageError, require_extra
from models.submodel import Network, Submodel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from coordinator.release.stored_run import StoredRun
    from export.release_reader import Bundle

__all__ = ["export", "load_run", "predict"]

EXPORTED = "a run of espalier.load_run, or an existing .onnx file"


def load_run(
    run: Path | str, model: nn.Module | None = None, *, runs: Path | str = "runs"
) -> StoredRun:
    """Return a stored run with its `weights` (tensors by name), `scores`, `history` (one record per
    round), `network`, `menu` and `config`. `slice`, `merge`, `predict` and `export` continue it.

    run: its folder, or its name below `runs`.
    model: the module that the run was started with, if another process started it.

    Raises StoreError for a run that is missing, damaged or without a finished round; ConfigError
    for a network whose code is not here; MissingExtra.
    """
    with require_extra("espalier.load_run", "coordinator"):
        from torch import nn

        from coordinator.release.stored_run import load_stored_run

    check_path("run", run)
    check_path("runs", runs)
    check_is("model", model, (nn.Module, NoneType), "an nn.Module or None")
    return load_stored_run(run, Path(runs), model)


def predict(
    source: StoredRun | Path | str, x: NDArray[Any], submodel: str = ""
) -> NDArray[np.float32]:
    """Return the outputs for raw examples: logits [n, outputs], or values in raw units.

    source: a run, or an exported .onnx file, which needs no PyTorch.
    x: raw examples [n, *inputs] in the units of the training data.
    submodel: name of a submodel of the run; empty: the largest.

    Raises Unknown; DataError for examples that do not fit; ExportError for a submodel without batch
    norm statistics, or a damaged file; MissingExtra.
    """
    x = read_array("x", x)
    if isinstance(source, Path | str):
        from export import onnx_session

        if not Path(source).exists() and Path(source).suffix != ".onnx":  # the name of a run
            raise ArgumentError("source", EXPORTED, source)
        return onnx_session.load(Path(source)).predict(x)
    with require_extra("espalier.predict", "coordinator"):
        from coordinator.release.stored_run import StoredRun, predict_run

    check_is("source", source, (StoredRun,), EXPORTED)
    check_is("submodel", submodel, (str,), "the name of a submodel")
    return predict_run(source, submodel or source.menu[-1].plain.name, x)


def export(
    source: StoredRun | Network,
    out: Path | str,
    submodels: Sequence[str] | Mapping[Submodel, nn.Module | Mapping[str, Tensor]] = (),
    *,
    inputs: object = None,
    int8: bool = True,
) -> Bundle:
    """Write submodels as ONNX files with a manifest and a model card, compared with PyTorch on real
    examples, as `coordinator export` does; return the manifest.

    source: a run, or a network of `espalier.network`.
    out: folder of the release.
    submodels: of a run: their names; empty: all that have batch norm statistics. Of a network:
        modules of `slice`, or their tensors by name, as `{small: module}` for submodels of `menu`.
    inputs: raw examples to compare with: a file, or arrays (x, y) as `data` of `run`. Not needed
        for a run whose data are on this machine. At most 1152 are used, drawn at random. Of these
        int8 takes up to 128, at most half, for calibration; accuracy is measured on the others.
    int8: also try int8.

    Raises Unknown; ExportError, also for a module whose batch norm layers have no statistics;
    DataError for tensors or examples that do not fit; MissingExtra.
    """
    with require_extra("espalier.export", "coordinator,export"):
        from coordinator.release.export_modules import export_modules
        from coordinator.release.export_run import ExportRequest, write_release
        from coordinator.release.stored_run import StoredRun

    check_is("source", source, (StoredRun, Network), SOURCES)
    check_path("out", out)
    examples = None if inputs is None else Path(name_data(inputs))
    if isinstance(source, Network):
        modules = read_modules(source, submodels)
        if examples is None:
            raise UsageError("export: a network has no examples to compare with: add inputs=(x, y)")
        return export_modules(source, modules, Path(out), examples, int8=int8)
    if isinstance(submodels, str) or not isinstance(submodels, Sequence):
        expected = 'names of submodels in a list, such as ["w0.5-d2.2.2"]'
        raise ArgumentError("submodels", expected, submodels)
    asked = ExportRequest(source.name, source.folder.parent, Path(out), submodels, examples, int8)
    return write_release(asked)[0]


def read_modules(network: Network, given: Any) -> dict[Submodel, Mapping[str, Tensor]]:
    """Return the tensors of each submodel of a network. Raises ArgumentError."""
    if not isinstance(given, Mapping) or not given:
        expected = "modules by submodel of a network, such as {small: espalier.slice(net, small)}"
        raise ArgumentError("submodels", expected, given)
    for submodel in given:
        check_submodel("submodels", submodel, network)
    return {
        submodel: read_tensors(f"submodels[{submodel.name}]", tensors)
        for submodel, tensors in given.items()
    }
