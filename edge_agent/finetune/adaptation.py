"""`edge-agent finetune`: adapt a released network to this device's own data, and compare both on
held-out data.

Nothing is sent. A network that did not improve is discarded unless --keep-anyway is set.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edge_agent.finetune.personal_release import (
    check_target,
    locate_weights,
    write_release,
    write_weights,
)
from edge_agent.releases.release_options import ReleaseRequest
from export import release_reader
from export.onnx_session import TOKENS
from export.release_reader import Bundle, Entry
from federated.data.dataset import Dataset, describe_examples
from federated.device.trainers.catalogue import DEFAULT, open_trainer
from federated.device.trainers.trainer import LoadedNetwork, Start
from federated.errors import ConfigError, DataError, ExportError, UsageError
from federated.install_command import pip_command
from federated.runtime.console import Say, show_progress
from federated.task import Recipe
from federated.training.score_sums import metrics
from federated.training.training_inputs import Diverged, Execution, TrainingSet
from models import submodel_building
from models.submodel import Network, Submodel

__all__ = ["FinetuneRequest", "adapt", "has_improved", "load_submodel", "run_finetune"]

Scores = dict[str, float]

BATCH = 256  # examples per batch of an evaluation


@dataclass(frozen=True)
class FinetuneRequest(ReleaseRequest):
    """Options of the command.

    out: folder of the adapted network.
    epochs, steps, batch, lr: settings of the training; 0 steps: all steps of the epochs.
    only: "all" layers or the "head" are trained.
    network: a `module:function` that the release may build.
    threads: 0 for PyTorch's choice.
    anyway: write a network that did not improve, too.
    """

    out: Path = field(kw_only=True)
    epochs: int = 3
    steps: int = 0
    batch: int = 32
    lr: float = 0.01
    only: str = "all"
    network: str = ""
    threads: int = 0
    anyway: bool = False


@dataclass(frozen=True)
class Adapted:
    """The result of the command.

    examples: number of training examples.
    held_out: number of held-out examples.
    before, after: `federated.training.score_sums.metrics` on the held-out examples.
    kept: "personal" or "release".
    model: the folder to serve from now on; empty if only the weights were written.
    weights: path of the adapted weights; empty if the release is kept.
    """

    run: str
    round: int
    submodel: str
    examples: int
    held_out: int
    steps: int
    before: Scores
    after: Scores
    kept: str
    model: str
    weights: str


def run_finetune(request: FinetuneRequest, form: str, say: Say) -> str:
    """Adapt and write the network, and return the text to print. Raises EspalierError for invalid
    releases, data and options.
    """
    folder, submodel = _find_release(request)
    check_target(request.out, folder)
    adapted = adapt(request, folder, submodel, request.load_data(), say)
    return json.dumps(asdict(adapted)) if form == "json" else _format(adapted)


def adapt(request: FinetuneRequest, folder: Path, name: str, data: Dataset, say: Say) -> Adapted:
    """Train a submodel of a release on the device's training data, and write it if its scores on
    the held-out data improve.

    Raises ExportError for a release with invalid weights, DataError for data that do not fit it or
    have no held-out part, ConfigError if training diverges.
    """
    release = release_reader.read(folder, name)
    submodel, weights = load_submodel(
        folder, release_reader.find_entry(release, name), request.network
    )
    _check_data(release, submodel.network, data)
    recipe, trainer = _make_recipe(request, submodel), open_trainer(DEFAULT)
    if request.threads:
        trainer.use_threads(request.threads)
    with trainer.load(Start(submodel, recipe, weights, request.seed)) as network:
        before = _evaluate(network, submodel, data)
        say(f"before: {_format_scores(before)} on {len(data.y_held)} held-out examples")
        steps, trained = _train(network, submodel, data, say)
        after = _evaluate(network, submodel, data)
    say(f"after {steps} steps on {len(data.y)} examples: {_format_scores(after)}")
    facts = (release.run, release.round, name, len(data.y), len(data.y_held), steps, before, after)
    if not has_improved(before, after, submodel.network) and not request.anyway:
        return Adapted(*facts, "release", str(folder), "")
    net = _build(submodel, trained)
    exports = all(importlib.util.find_spec(package) for package in ("onnx", "onnxscript"))
    if exports:
        with show_progress("exporting and comparing with PyTorch"):
            write_release(request.out, release, submodel, net, data, recipe.hide)
    else:
        write_weights(request.out, submodel, net)
        say(
            f"wrote only the weights: {pip_command('export')} to write graphs that "
            "`edge-agent infer` can serve"
        )
    path = locate_weights(request.out, submodel)
    return Adapted(*facts, "personal", str(request.out) if exports else "", str(path))


def load_submodel(
    folder: Path, entry: Entry, allowed: str = ""
) -> tuple[Submodel, Mapping[str, NDArray[Any]]]:
    """Load a submodel of a release and its weights. allowed: a `module:function` of this device
    that may build its network.

    Raises ExportError for invalid weights, UsageError for another `module:function`.
    """
    plain, values = release_reader.read_weights(folder, entry)
    path = folder / entry.weights.name
    try:
        submodel = msgspec.convert(plain, Submodel)
    except msgspec.ValidationError as error:
        raise ExportError(f"{path}: expected a submodel and its weights: {error}") from error
    family = submodel.network.family
    if ":" in family and family != allowed:
        raise UsageError(
            f"{path} has the network '{family}': set --network {family} if you trust that function"
        )
    try:
        expected = submodel_building.shapes(submodel) | submodel_building.statistics(submodel)
    except Exception as error:  # any error of PyTorch about impossible sizes
        raise ExportError(
            f"{path}: no network can be built of '{family}': "
            f"{str(error)[:300] or type(error).__name__}"
        ) from error
    found = {name: tuple(value.shape) for name, value in values.items()}
    if odd := {
        name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
    }:
        name = min(odd)
        raise ExportError(
            f"{path}: expected {name} of shape {expected.get(name, 'none')}, found "
            f"{found.get(name, 'none')} ({len(odd)} mismatches)"
        )
    if broken := [name for name, value in values.items() if not np.isfinite(value).all()]:
        raise ExportError(f"{path}: expected finite weights, found NaN or infinity in {broken[0]}")
    return submodel, values


def _build(submodel: Submodel, values: Mapping[str, NDArray[Any]]) -> nn.Module:
    """Build the network with these weights, in evaluation mode, as the exporter requires."""
    net = submodel_building.build(submodel)
    net.load_state_dict(
        {name: torch.from_numpy(value) for name, value in values.items()}, strict=False
    )
    return net.eval()


def has_improved(before: Scores, after: Scores, network: Network) -> bool:
    """Return True if the accuracy (for values: R2) is higher, or equal with a lower loss. For
    texts, only the loss counts.
    """
    if not math.isfinite(after["loss"]):
        return False
    if network.objective in TOKENS:
        return after["loss"] < before["loss"]
    return (after["accuracy"], -after["loss"]) > (before["accuracy"], -before["loss"])


def _find_release(request: FinetuneRequest) -> tuple[Path, str]:
    """Return the folder of the release and the name of the submodel."""
    request.check_source("the folder of a release")
    if request.model is not None and request.model.is_file():
        raise UsageError(
            f"--model {request.model}: expected the folder of a release: a single graph has no "
            "weights to train"
        )
    return request.find_release()


def _check_data(release: Bundle, network: Network, data: Dataset) -> None:
    target = network.target
    expected = (release.inputs, release.dtype, target)
    found = (tuple(data.x.shape[1:]), data.x.dtype.name, data.target)
    if found != expected:
        described = [
            f"{dtype} {list(inputs)} with a {kind}" for inputs, dtype, kind in (expected, found)
        ]
        raise DataError(
            f"{data.name}: expected examples as in run '{release.run}' ({described[0]}), "
            f"found {described[1]}"
        )
    if (texts := describe_examples(network)) != (other := describe_examples(data)):
        raise DataError(f"{data.name}: expected {texts}, as in run '{release.run}'; found {other}")
    fits = data.outputs <= release.outputs if target == "class" else data.outputs == release.outputs
    if not fits:
        raise DataError(
            f"{data.name}: expected {release.outputs} outputs as run '{release.run}' has, "
            f"found {data.outputs}"
        )
    if not len(data.y_held):
        raise DataError(
            f"{data.name}: expected held-out examples for the comparison, found none: provide "
            "more examples"
        )
    if len(data.y) < 2:
        raise DataError(f"{data.name}: expected at least 2 training examples, found {len(data.y)}")


def _make_recipe(request: FinetuneRequest, submodel: Submodel) -> Recipe:
    frozen: tuple[str, ...] = ()
    if request.only == "head":
        head = submodel_building.find_labelled(submodel)
        if not head:
            raise UsageError(f"--only head: the network of {submodel.name} declares no head")
        frozen = tuple(sorted(submodel_building.shapes(submodel).keys() - head))
    return Recipe(
        request.epochs,
        request.steps,
        request.batch,
        lr=request.lr,
        clip=10.0,
        frozen=frozen,
        seed=request.seed,
    )


def _train(
    network: LoadedNetwork, submodel: Submodel, data: Dataset, say: Say
) -> tuple[int, dict[str, NDArray[Any]]]:
    """Train the network, and measure static batch norm on the device's own data, as the fleet does.
    Return the number of steps and the tensors.
    """

    def report(step: int, steps: int, loss: float) -> None:
        if step % max(1, steps // 10) == 0:
            say(f"step {step}/{steps}: loss {loss:.3f}")

    try:
        done = network.train(data, Execution(on_step=report))
    except Diverged as error:
        raise ConfigError(f"nothing was written: {error}") from error
    measured = network.calibrate(data.x)[0] if submodel_building.statistics(submodel) else {}
    return done.steps, {**done.tensors, **measured}


def _evaluate(network: LoadedNetwork, submodel: Submodel, data: Dataset) -> Scores:
    held = TrainingSet(data.x_held, data.y_held)
    return metrics(network.evaluate(held, Recipe(batch=BATCH))["all"], submodel.network)


def _format_scores(scores: Scores) -> str:
    """Format scores; the accuracy of values is R2."""
    accuracy = (
        f"R2 {scores['accuracy']:.3f}" if "rmse" in scores else f"accuracy {scores['accuracy']:.1%}"
    )
    others = (
        f"{name} {scores[name]:.4g}" for name in ("rmse", "perplexity", "loss") if name in scores
    )
    return ", ".join([accuracy, *others])


def _format(adapted: Adapted) -> str:
    change = (
        f"before: {_format_scores(adapted.before)}; after: {_format_scores(adapted.after)} "
        f"({adapted.held_out} held-out examples)"
    )
    if adapted.kept == "release":
        return (
            f"{change}\nthe adapted network did not improve and was discarded; the release stays "
            f"in {adapted.model} (--keep-anyway writes the adapted network)"
        )
    if adapted.model:
        return f"{change}\nedge-agent infer --model {adapted.model} INPUTS"
    return f"{change}\nweights: {adapted.weights}"
