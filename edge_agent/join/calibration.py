"""How fast this device is with a family of networks: a few small submodels timed, in training and
as exported graphs.

Runs in the training process, under its limits. Without data of the device's own, on random examples
of the family's usual kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.device.measurement_cache import MeasurementCache, surroundings
from edge_agent.device.profiling import TimingSite, time_submodels, timing_key
from edge_agent.join.worker import Job
from export.latency import measure_latency
from federated.data.dataset import Dataset
from federated.device.profile_file import Circumstances, Runtime
from federated.device.trainers.trainer import Trainer
from federated.errors import ConfigError
from federated.runtime.plugins import unknown
from federated.task import Timing
from models.families.catalogue import KIND, build, network, probes
from models.submodel import Network, Submodel, Target

__all__ = ["Calibrated", "Order", "calibrate", "drawn", "exported", "network_of", "to_time"]

IMAGES: tuple[tuple[int, ...], int, Target] = ((3, 32, 32), 10, "class")
# inputs, outputs, target; images where a family is not named
USUAL: dict[str, tuple[tuple[int, ...], int, Target]] = {
    "resnet1d": ((9, 128), 6, "class"),
    "transformer": ((64,), 4096, "token"),
}
DEEPEST = 10**6  # blocks: more than any section has, so all of them
ANSWERS, SECONDS = 30, 0.5  # at least so many, and for so long, are timed of a graph


@dataclass(frozen=True)
class Order:
    """What to calibrate. model: a family, a family and a preset, or the owner's `module:function`.
    batch: examples of a training step.

    threads: 0 finds the best number. files: exported submodels by name, for runtime onnx. fresh:
    look nothing up.
    """

    model: str
    runtime: Runtime
    batch: int
    threads: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False


@dataclass(frozen=True)
class Calibrated:
    """missing: submodels whose graphs must be exported first, since their time is not known, for
    examples of `dtype`; there are no timings then. taken: how many were timed now, the others being
    known.
    """

    family: str
    threads: int
    timings: tuple[Timing, ...]
    circumstances: Circumstances
    taken: int = 0
    missing: tuple[Submodel, ...] = ()
    dtype: str = ""


def calibrate(job: Job, data: Any, order: Order, trainer: Trainer) -> Calibrated:
    """Times the submodels `to_time`. data: the device's own, or None. Raises Unknown for a model
    that there is not, ConfigError.
    """
    data = data or drawn(order.model, order.batch)
    made = network_of(order.model, data)
    notebook = MeasurementCache(surroundings(job.limits, trainer.runtime), fresh=order.fresh)
    if order.runtime == "torch":
        site = TimingSite(job.limits, trainer, notebook)
        threads, timings = time_submodels(to_time(made), order.batch, data, site, order.threads)
        return Calibrated(made.family, threads, timings, notebook.circumstances, notebook.taken)
    return _answers(made, data, order, notebook)


def to_time(made: Network) -> tuple[Submodel, ...]:
    """The submodels that say how long all others take."""
    return probes(made, (1, DEEPEST))


def network_of(model: str, data: Dataset) -> Network:
    """The network that a name means, for these data. Raises Unknown, ConfigError."""
    card = data.card()
    try:
        return network(
            model,
            card.inputs,
            card.outputs,
            card,
            card.target,
        )
    except LookupError as error:
        raise unknown(KIND, error) from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except Exception as error:  # whatever a function of the user's own raises
        raise ConfigError(f"{model}: {type(error).__name__}: {error}") from error


def drawn(model: str, examples: int) -> Dataset:
    """Random examples of the kind that a family is usually given."""
    inputs, outputs, target = USUAL.get(model.split("-")[0], IMAGES)
    rng, shape = np.random.default_rng(0), (max(2, examples), *inputs)
    if target == "token":
        x: Any = rng.integers(0, outputs, shape)
        return Dataset("random tokens", x, np.roll(x, -1, 1), x[:0], x[:0], outputs, target)
    x = (
        rng.integers(0, 256, shape, np.uint8)
        if len(inputs) > 2
        else rng.normal(size=shape).astype(np.float32)
    )
    y = np.arange(len(x)) % outputs
    return Dataset("random examples", x, y, x[:0], y[:0], outputs, target)


def _answers(made: Network, data: Dataset, order: Order, notebook: MeasurementCache) -> Calibrated:
    """Seconds that the exported submodels take to answer for one example."""
    threads, submodels = order.threads or 1, to_time(made)
    timings, missing = list[Timing](), list[Submodel]()
    for submodel in submodels:
        path = order.files.get(submodel.name, "")
        what = {
            "work": "infer",
            "runtime": "onnx",
            "submodel": timing_key(submodel),
            "dtype": str(data.x.dtype),
            "threads": threads,
        }
        try:
            seconds = notebook.value(
                what, partial(_answer, path, data.x[:1], threads), keep=":" not in made.family
            )
        except FileNotFoundError:
            missing.append(submodel)
        else:
            timings.append(Timing(submodel, 1, seconds))
    found = () if missing else tuple(timings)
    return Calibrated(
        made.family,
        threads,
        found,
        notebook.circumstances,
        notebook.taken,
        tuple(missing),
        str(data.x.dtype),
    )


def _answer(path: str, x: Any, threads: int) -> float:
    """Median seconds. Raises FileNotFoundError where there is no file yet."""
    from export.verify import load

    if not path:
        raise FileNotFoundError
    session = load(Path(path), threads=threads)
    return measure_latency(lambda: session.predict(x), runs=ANSWERS, seconds=SECONDS).p50


def exported(submodels: Sequence[Submodel], dtype: str, folder: Path) -> dict[str, str]:
    """Paths by name of untrained submodels as graphs, which take as long as trained ones. Raises
    MissingExtra, ExportError.
    """
    from export.onnx_export import export

    found = {}
    for submodel in submodels:
        example = np.zeros((2, *submodel.network.inputs), dtype)
        origin = {"run": "profile", "round": 0, "submodel": submodel.name}
        found[submodel.name] = str(
            export(
                build(submodel), submodel.network, example, folder / f"{submodel.name}.onnx", origin
            )
        )
    return found
