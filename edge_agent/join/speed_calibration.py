"""Time a few small submodels of a family, in training and as exported graphs, to predict the times
of all others.

Runs in the training process, within its limits. Without data of the device's own it uses random
examples of the form that the family declares.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.device.measurement_cache import MeasurementCache, describe_surroundings
from edge_agent.device.profiling import TimingSite, make_timing_key, time_step, time_submodels
from edge_agent.join.trainer_choice import compares, find_ratio
from edge_agent.join.training_process_control import Calibrated, Compared, Job, Order
from export.latency import measure_latency
from federated.data.dataset import Dataset
from federated.device.profile_file import Calibration
from federated.device.trainers.trainer import Trainer
from federated.errors import ConfigError
from federated.runtime.extension_errors import explain_lookup, report_failure
from federated.task import Recipe, Timing
from models.families.catalogue import POINT
from models.menu import probes
from models.named_network import find_typical_data, network
from models.submodel import Network, Submodel
from models.submodel_building import build

__all__ = [
    "build_network",
    "calibrate",
    "compare_trainers",
    "draw_examples",
    "export_graphs",
    "export_step",
    "select_probes",
]

DEEPEST = 10**6  # blocks: more than any section has, so all of them
RUNS, SECONDS = 30, 0.5  # least number and least seconds of predictions that are timed per graph


def calibrate(job: Job, data: Any, order: Order, trainer: Trainer) -> Calibrated:
    """Time the submodels that `select_probes` returns. data: the device's own, or None. Raises
    Unknown for an unknown model, ConfigError.
    """
    data = data or draw_examples(order.model, order.batch)
    net = build_network(order.model, data)
    cache = MeasurementCache(describe_surroundings(job.limits, trainer.runtime), fresh=order.fresh)
    if order.runtime == "torch":
        site = TimingSite(job.limits, trainer, cache)
        threads, timings = time_submodels(
            select_probes(net), order.batch, data, site, order.threads
        )
        calibration = Calibration(net.family, "torch", "train", threads, timings)
        return Calibrated(calibration, cache.circumstances, cache.taken)
    return _time_graphs(net, data, order, cache)


def compare_trainers(job: Job, data: Any, order: Order, trainer: Trainer) -> Compared:
    """Compare a training step with ONNX Runtime with that of a trainer, for the largest of the
    submodels that `select_probes` returns, with as many threads. data: the device's own, or None.

    Raises Unknown for an unknown model, ConfigError.
    """
    if not compares(trainer):
        raise ConfigError(
            f"expected PyTorch on the processor to compare with, found {trainer.runtime}"
        )
    data = data or draw_examples(order.model, order.batch)
    net = build_network(order.model, data)
    cache = MeasurementCache(describe_surroundings(job.limits, trainer.runtime), fresh=order.fresh)
    probe = select_probes(net)[-1]
    path, threads = order.files.get(probe.name), order.threads or job.limits.threads

    def measure() -> float:
        from federated.device.trainers.onnx_trainer import OnnxTrainer

        graphs, seconds = OnnxTrainer("cpu"), list[float]()
        graphs.use_graphs({"step": Path(path or "")})
        for one in (graphs, trainer):
            one.use_threads(threads)
            seconds.append(time_step(probe, order.batch, data, one))
        return seconds[0] / seconds[1]

    ratio = find_ratio(net.family, cache, measure if path else None)
    return Compared(ratio, probe, cache.circumstances)


def select_probes(net: Network) -> tuple[Submodel, ...]:
    """Return the submodels from whose times those of all others are predicted."""
    return probes(net, (1, DEEPEST))


def build_network(model: str, data: Dataset) -> Network:
    """Return the network that a name means for these data. Raises Unknown, ConfigError."""
    card = data.card()
    with report_failure("model", model), explain_lookup(POINT):
        return network(model, card.inputs, card.outputs, card, card.target)


def draw_examples(model: str, examples: int) -> Dataset:
    """Return random examples of the data that a model usually learns. Raises Unknown,
    ConfigError.
    """
    with explain_lookup(POINT):
        typical = find_typical_data(model)
    rng, shape = np.random.default_rng(0), (max(2, examples), *typical.inputs)
    if typical.target == "token":
        x: Any = rng.integers(0, typical.outputs, shape)
        y: Any = np.roll(x, -1, 1)
    else:
        images = len(typical.inputs) > 2
        x = rng.integers(0, 256, shape, np.uint8) if images else _draw_floats(rng, shape)
        y = (
            _draw_floats(rng, (len(x), typical.outputs))
            if typical.target == "value"
            else np.arange(len(x)) % typical.outputs
        )
    return Dataset("random examples", x, y, x[:0], y[:0], typical.outputs, typical.target)


def _draw_floats(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def _time_graphs(net: Network, data: Dataset, order: Order, cache: MeasurementCache) -> Calibrated:
    """Time the exported submodels on one example."""
    threads, dtype = order.threads or 1, str(data.x.dtype)
    timings, missing = list[Timing](), list[Submodel]()
    for submodel in select_probes(net):
        path = order.files.get(submodel.name, "")
        key = {
            "work": "infer",
            "runtime": "onnx",
            "submodel": make_timing_key(submodel),
            "dtype": dtype,
            "threads": threads,
        }
        measure = partial(_time_graph, path, data.x[:1], threads)
        try:
            seconds = cache.value(key, measure, keep=":" not in net.family)
        except FileNotFoundError:
            missing.append(submodel)
        else:
            timings.append(Timing(submodel, 1, seconds))
    done = () if missing else tuple(timings)
    calibration = Calibration(net.family, "onnx", "infer", threads, done)
    return Calibrated(calibration, cache.circumstances, cache.taken, tuple(missing), dtype)


def _time_graph(path: str, x: Any, threads: int) -> float:
    """Return the median seconds per prediction. Raises FileNotFoundError without a path."""
    from export.onnx_session import load

    if not path:
        raise FileNotFoundError
    session = load(Path(path), threads=threads)
    return measure_latency(lambda: session.predict(x), runs=RUNS, seconds=SECONDS).p50


def export_step(submodel: Submodel, batch: int, folder: Path) -> dict[str, str]:
    """Export a training step of a submodel; return its path by the submodel's name. Raises
    MissingExtra, ExportError.
    """
    from export.trainstep.graph_export import export_graph
    from export.trainstep.training_step import make_step

    # as many examples as the graph of a run takes
    data = export_graph(make_step(submodel, Recipe(batch=batch), batch + 1))
    path = folder / f"{sha256(data).hexdigest()}.onnx"
    path.write_bytes(data)
    return {submodel.name: str(path)}


def export_graphs(submodels: Sequence[Submodel], dtype: str, folder: Path) -> dict[str, str]:
    """Export untrained submodels, which take as long as trained ones; return their paths by name.
    Raises MissingExtra, ExportError.
    """
    from export.onnx_export import export

    paths = {}
    for submodel in submodels:
        example = np.zeros((2, *submodel.network.inputs), dtype)
        origin = {"run": "profile", "round": 0, "submodel": submodel.name}
        path = folder / f"{submodel.name}.onnx"
        paths[submodel.name] = str(export(build(submodel), submodel.network, example, path, origin))
    return paths
