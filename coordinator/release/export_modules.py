"""Export modules that a Python program cut out of a network, without a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from coordinator.release.release_examples import read_examples
from export import release_writer
from export.onnx_session import NO_ROUND
from export.release_reader import Bundle
from export.release_writer import Contents
from federated.errors import ConfigError, ExportError, explain_os_errors
from federated.manual_round import rebuild
from federated.method import Tensors
from federated.task import Recipe
from models.layers.batch_norm import norms
from models.submodel import Network, Submodel

__all__ = ["export_modules"]


def export_modules(
    network: Network, modules: Mapping[Submodel, Tensors], out: Path, inputs: Path, *, int8: bool
) -> Bundle:
    """Write submodels of a network with given tensors as a release, and return its manifest.

    modules: at least one submodel, with its parameters and batch norm statistics.
    inputs: name or file of raw examples to compare with.
    Raises DataError for tensors or examples that do not fit; ExportError, MissingExtra.
    """
    nets = {submodel: rebuild(submodel, tensors) for submodel, tensors in modules.items()}
    for submodel, net in nets.items():
        check_statistics(submodel, net)
    x, truth, classes = read_examples(inputs, network, Recipe.hide)
    contents = Contents(
        network.title,
        NO_ROUND,
        nets,
        x,
        truth,
        int8=int8,
        classes=classes if len(classes) == network.outputs else (),
    )
    with explain_os_errors(
        ConfigError, f"cannot write the release to {out}", remedy="choose another folder"
    ):
        return release_writer.write(out, contents)


def check_statistics(submodel: Submodel, net: nn.Module) -> None:
    """Raise ExportError if a batch norm layer still has the statistics of a new layer."""
    for name, layer in norms(net).items():
        mean, variance = layer.running_mean, layer.running_var
        if mean is not None and variance is not None and not mean.any() and variance.eq(1).all():
            raise ExportError(
                f"submodel {submodel.name}: layer '{name}' has no batch norm statistics: before "
                "you export the module, train it, or pass about 50 batches of examples through it "
                "in training mode (module.train())"
            )
