"""`edge-agent finetune`: adapt a released network to this device's own data, and say what that
changed on examples it did not learn from.

Nothing is sent. What did not get better is not kept, unless asked for.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edge_agent.finetune.personal_release import (
    check_target,
    weights_path,
    write_release,
    write_weights,
)
from edge_agent.infer.infer_command import select_submodel
from export import bundle
from export.bundle import Bundle, Entry
from export.verify import TOKENS
from federated.data.catalogue import device
from federated.data.dataset import Dataset
from federated.device.trainers.catalogue import DEFAULT, open_trainer
from federated.device.trainers.trainer import LoadedNetwork, Start
from federated.engine.tallies import metrics
from federated.errors import ConfigError, DataError, ExportError, UsageError
from federated.runtime.console import Say
from federated.task import Recipe
from federated.training.execution import Diverged, Execution, TrainingSet
from models.families import catalogue
from models.submodel import Network, Submodel

__all__ = ["Adapted", "Request", "adapt", "better", "command", "loaded"]

Scores = dict[str, float]

BATCH = 256  # examples at a time that are only looked at


@dataclass(frozen=True)
class Request:
    """What is asked for. broker, model: where the release comes from, one of them; run, submodel,
    store, wait: of the release, as for `infer`.

    data, root, shard, partition, seed: this device's own data. only: "all" parameters learn, or the
    "head" alone. network: a `module:function` that may be built. anyway: keep what got worse too.
    """

    name: str
    out: Path
    data: str
    broker: str | None = None
    model: Path | None = None
    run: str | None = None
    submodel: str | None = None
    store: Path = Path("espalier-models")
    wait: float = 30.0
    root: str | None = None
    shard: str | None = None
    partition: str = "dirichlet:1.0"
    seed: int = 0
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
    """What became of it. before, after: `federated.engine.tallies.metrics` on `held_out` examples.
    kept: "personal" or "release".

    model: the folder to serve from now on; empty where only `weights` could be written. examples:
    learned from.
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


def command(request: Request, form: str, say: Say) -> str:
    """Adapts, writes, and returns what is printed last. Raises EspalierError for all that can be
    wrong with a release, data or options.
    """
    folder, submodel = _source(request)
    check_target(request.out, folder)
    data = device(
        request.data,
        request.root,
        name=request.name,
        shard=request.shard,
        partition=request.partition,
        seed=request.seed,
    )
    found = adapt(request, folder, submodel, data, say)
    if form == "json":
        return json.dumps(asdict(found))
    return _told(found)


def adapt(request: Request, folder: Path, name: str, data: Dataset, say: Say) -> Adapted:
    """Trains the submodel `name` of a release on the device's training part, and keeps the better
    of both by the held-out part.

    Raises ExportError for a release without sound weights, DataError for data of another shape or
    without a held-out part, ConfigError where training diverges.
    """
    made = bundle.read(folder, name)
    entry = bundle.entry_of(made, name)
    submodel, weights = loaded(folder, entry, request.network)
    _check_data(made, submodel.network, data)
    recipe, trainer = _recipe(request, submodel), open_trainer(DEFAULT)
    if request.threads:
        trainer.use_threads(request.threads)
    with trainer.load(Start(submodel, recipe, weights, request.seed)) as network:
        before = _scores(network, submodel, data)
        say(f"before: {_line(before)} on {len(data.y_held)} held-out examples")
        steps, trained = _trained(network, submodel, data, say)
        after = _scores(network, submodel, data)
    say(f"after {steps} steps on {len(data.y)} examples: {_line(after)}")
    facts = (made.run, made.round, name, len(data.y), len(data.y_held), steps, before, after)
    if not better(before, after, submodel.network) and not request.anyway:
        return Adapted(*facts, "release", str(folder), "")
    net = _assembled(submodel, trained)
    whole = (
        importlib.util.find_spec("onnx") is not None
        and importlib.util.find_spec("onnxscript") is not None
    )
    if whole:
        write_release(request.out, made, submodel, net, data, recipe.hide)
    else:
        write_weights(request.out, submodel, net)
        say(
            "only the weights are written: pip install 'espalier[export]' to write graphs that "
            "`edge-agent infer` serves"
        )
    adapted = weights_path(request.out, submodel)
    return Adapted(*facts, "personal", str(request.out) if whole else "", str(adapted))


def loaded(
    folder: Path, entry: Entry, allowed: str = ""
) -> tuple[Submodel, Mapping[str, NDArray[Any]]]:
    """A submodel of a release and its weights. allowed: a `module:function` of this device that may
    be run to build it.

    Raises ExportError for weights that are not a submodel's, UsageError for a function that was not
    allowed.
    """
    plain, values = bundle.weights_of(folder, entry)
    path = folder / entry.weights.name
    try:
        submodel = msgspec.convert(plain, Submodel)
    except msgspec.ValidationError as error:
        raise ExportError(f"{path}: expected a submodel and its weights, found {error}") from error
    family = submodel.network.family
    if ":" in family and family != allowed:
        raise UsageError(
            f"{path} is of the network '{family}': name it by --network {family} if you "
            "trust that function of yours"
        )
    try:
        wanted = catalogue.shapes(submodel) | catalogue.statistics(submodel)
    except Exception as error:  # whatever PyTorch says of sizes that cannot be
        raise ExportError(
            f"{path}: no network can be built of '{family}': "
            f"{str(error)[:300] or type(error).__name__}"
        ) from error
    found = {name: tuple(value.shape) for name, value in values.items()}
    if odd := {
        name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)
    }:
        name = min(odd)
        raise ExportError(
            f"{path}: expected {name} of shape {wanted.get(name, 'none')}, found "
            f"{found.get(name, 'none')} ({len(odd)} such)"
        )
    if broken := [name for name, value in values.items() if not np.isfinite(value).all()]:
        raise ExportError(f"{path}: expected finite weights, found NaN or infinity in {broken[0]}")
    return submodel, values


def _assembled(submodel: Submodel, values: Mapping[str, NDArray[Any]]) -> nn.Module:
    """The network with these weights, in evaluation mode, as the exporter takes it."""
    net = catalogue.build(submodel)
    net.load_state_dict(
        {name: torch.from_numpy(value) for name, value in values.items()}, strict=False
    )
    return net.eval()


def better(before: Scores, after: Scores, network: Network) -> bool:
    """Whether the second is: more often right (of values: explains more), or as often at a smaller
    loss; of texts, by the loss alone.
    """
    if not math.isfinite(after["loss"]):
        return False
    if network.objective in TOKENS:
        return after["loss"] < before["loss"]
    return (after["accuracy"], -after["loss"]) > (before["accuracy"], -before["loss"])


def _source(request: Request) -> tuple[Path, str]:
    if (request.broker is None) == (request.model is None):
        raise UsageError("set either --broker to download a release, or --model FOLDER")
    if request.broker is not None:
        from edge_agent.infer.fetch import fetch_from

        return fetch_from(
            request.broker,
            request.run,
            request.submodel or request.name,
            request.store,
            request.wait,
        )
    assert request.model is not None
    if request.model.is_file():
        raise UsageError(
            f"--model {request.model}: expected the folder of a release, which has "
            "weights to train; a single graph has none"
        )
    return request.model, select_submodel(request.model, request.submodel)


def _check_data(made: Bundle, network: Network, data: Dataset) -> None:
    target = "token" if network.objective in TOKENS else network.objective
    found = (tuple(data.x.shape[1:]), data.x.dtype.name, data.target)
    if found != (made.inputs, made.dtype, target):
        shapes = (
            f"a {kind} for {dtype} {list(inputs)}"
            for inputs, dtype, kind in ((made.inputs, made.dtype, target), found)
        )
        raise DataError(
            f"{data.name}: expected examples like those of run '{made.run}', "
            f"{next(shapes)}, found {next(shapes)}"
        )
    fits = data.outputs <= made.outputs if target == "class" else data.outputs == made.outputs
    if not fits:
        raise DataError(
            f"{data.name}: expected {made.outputs} outputs as run '{made.run}' has, "
            f"found {data.outputs}"
        )
    if not len(data.y_held):
        raise DataError(
            f"{data.name}: expected a held-out part to judge by, found none: give more examples"
        )
    if len(data.y) < 2:
        raise DataError(
            f"{data.name}: expected at least 2 examples to learn from, found {len(data.y)}"
        )


def _recipe(request: Request, submodel: Submodel) -> Recipe:
    head = catalogue.labelled(submodel)
    if request.only == "head" and not head:
        raise UsageError(f"--only head: the network of {submodel.name} says nothing of a head")
    frozen = (
        tuple(sorted(catalogue.shapes(submodel).keys() - head)) if request.only == "head" else ()
    )
    return Recipe(
        request.epochs,
        request.steps,
        request.batch,
        lr=request.lr,
        clip=10.0,
        frozen=frozen,
        seed=request.seed,
    )


def _trained(
    network: LoadedNetwork, submodel: Submodel, data: Dataset, say: Say
) -> tuple[int, dict[str, NDArray[Any]]]:
    """Train in place, and measure static batch norm on the device's own data, as the fleet does.
    Return the steps taken and the tensors.
    """

    def progress(step: int, steps: int, loss: float) -> None:
        if step % max(1, steps // 10) == 0:
            say(f"step {step}/{steps}: loss {loss:.3f}")

    try:
        done = network.train(data, Execution(on_step=progress))
    except Diverged as error:
        raise ConfigError(f"nothing was written: {error}") from error
    measured = network.calibrate(data.x)[0] if catalogue.statistics(submodel) else {}
    return done.steps, {**done.tensors, **measured}


def _scores(network: LoadedNetwork, submodel: Submodel, data: Dataset) -> Scores:
    held = TrainingSet(data.x_held, data.y_held)
    return metrics(network.evaluate(held, Recipe(batch=BATCH))["all"], submodel.network)


def _line(scores: Scores) -> str:
    """Scores for a person; what explains values is called by its name."""
    named = [
        f"R2 {scores['accuracy']:.3f}" if "rmse" in scores else f"accuracy {scores['accuracy']:.1%}"
    ]
    named += [
        f"{name} {scores[name]:.4g}" for name in ("rmse", "perplexity", "loss") if name in scores
    ]
    return ", ".join(named)


def _told(found: Adapted) -> str:
    changed = (
        f"before {_line(found.before)}; after {_line(found.after)} ({found.held_out} held-out "
        "examples)"
    )
    if found.kept == "release":
        return (
            f"{changed}\nthe release is no worse, and stays: {found.model} (--keep-anyway writes "
            "the adapted one)"
        )
    where = (
        f"edge-agent infer --model {found.model} INPUTS"
        if found.model
        else f"weights: {found.weights}"
    )
    return f"{changed}\n{where}"
