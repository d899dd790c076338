"""Measure a device before it joins: processors, memory, mean and deviation of its data, and the
time and power of a training step.

Runs in the training process, under its limits, so that the measurements apply to training.
Torch-free: the trainer computes.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from edge_agent.device.board import read_board
from edge_agent.device.energy import Meter, read_counters, read_watts
from edge_agent.device.measurement_cache import MeasurementCache, describe_surroundings
from edge_agent.device.process_limits import Limits, count_cpus, measure_free_memory
from federated.data.dataset import explain_misfit
from federated.device.trainers.trainer import Trainer, uses_graphs
from federated.errors import ConfigError, DataError
from federated.install_command import NAME
from federated.runtime.provenance import versions
from federated.task import MAX_CAPABILITIES, MAX_CODECS, MOST_WATTS, Board, Card, Profile, Timing
from federated.wire import envelope
from federated.wire.codecs.catalogue import codec_names
from federated.wire.codecs.weights import list_weights_codecs
from federated.wire.messages import Run
from models.submodel import Submodel

__all__ = [
    "TimingSite",
    "describe_device",
    "make_timing_key",
    "measure_profile",
    "time_calls",
    "time_step",
    "time_submodels",
]

WARM_UP = 2  # steps before the measurement
WINDOWS = 3  # most measured windows; the fastest counts, since others were disturbed
AGREEMENT = 0.03  # largest relative difference of two windows that were not disturbed
WINDOW = 0.3  # seconds per window: many scheduling periods, so that a fraction of a processor shows
STEPS = 2  # minimum steps per window
# to choose the number of threads: windows per number (the fastest counts), and seconds per window;
# short windows suffice, since numbers of threads that matter differ clearly
COMPARED, SHORT_WINDOW = 2, 0.1


class InsufficientMemory(Exception):
    """A submodel cannot be timed in the free memory; the text says how much it needs."""


def describe_device(agent: str, data: Card, limits: Limits, trainer: Trainer) -> Profile:
    """Return the parts of a profile that need neither a measurement nor a link.

    agent: name of the agent
    """
    board = read_board()
    return Profile(
        agent,
        platform.node(),
        f"{platform.system()} {platform.machine()}",
        count_cpus(limits),
        measure_training_memory(limits, trainer, board),
        uplink=0.0,
        chunk=0,
        runtime=trainer.runtime,
        data=data,
        timings=(),
        board=board,
        codecs=codec_names()[:MAX_CODECS],
        weights_codecs=list_weights_codecs(),
        capabilities=tuple(sorted(trainer.capabilities))[:MAX_CAPABILITIES],
        protocol=envelope.PROTOCOL,
        software=f"edge-agent {versions([NAME])[NAME]}".rstrip(),
    )


def measure_training_memory(limits: Limits, trainer: Trainer, board: Board) -> int:
    """Return the bytes that training may use. A GPU that shares the processor's memory shares its
    budget.
    """
    memory = measure_free_memory(limits)
    if trainer.accelerator is None:
        return memory
    own = trainer.accelerator.free()
    return min(own, memory) if board.shared else own


def measure_profile(
    agent: str, run: Run, data: Any, limits: Limits, trainer: Trainer, *, fresh: bool = False
) -> Profile:
    """Describe this process's device, time the submodels that the run names on its own data, and
    set the number of threads. A trainer of graphs is not timed: none is exported yet.

    fresh: ignore cached timings
    DataError: the data do not fit the run's network. ConfigError: no submodel fits the memory.
    """
    card = data.card()
    networks = [submodel.network for submodel in (*run.calibration, *run.menu)]
    if run.network is not None:
        networks.insert(0, run.network)
    for network in dict.fromkeys(networks):
        if why := explain_misfit(card, network):
            raise DataError(why)
    notebook = MeasurementCache(describe_surroundings(limits, trainer.runtime), fresh=fresh)
    site = TimingSite(limits, trainer, notebook)
    timings: tuple[Timing, ...] = ()
    if run.calibration and not uses_graphs(trainer):
        _, timings = time_submodels(run.calibration, run.batch, data, site)
    watts = _measure_watts(timings[-1].submodel, run.batch, data, site) if timings else 0.0
    profile = describe_device(agent, card, limits, trainer)
    survey = trainer.survey(run, data, profile.memory)
    return replace(profile, timings=timings, survey=survey, watts=watts)


@dataclass(frozen=True)
class TimingSite:
    """Surroundings in which training steps are timed.

    limits: limits of this process
    trainer: the trainer whose steps are timed
    notebook: cache of timings
    """

    limits: Limits
    trainer: Trainer
    notebook: MeasurementCache


def time_submodels(
    submodels: Sequence[Submodel], batch: int, data: Any, site: TimingSite, threads: int = 0
) -> tuple[int, tuple[Timing, ...]]:
    """Time a training step of each submodel that fits. Return the number of threads that this
    process uses from now on, and the timings.

    threads: number to use; 0 finds the best
    ConfigError: no submodel fits.
    """
    refused = list[InsufficientMemory]()
    known: dict[Submodel, float] = {}
    if site.trainer.accelerator is None:
        threads = threads or _choose_threads(submodels[-1], batch, data, site)
        site.trainer.use_threads(threads)
    for submodel in submodels:
        try:
            known[submodel] = _time_step(submodel, batch, data, site, threads)
        except InsufficientMemory as error:
            refused.append(error)
    timings = tuple(Timing(one, batch, known[one]) for one in submodels if one in known)
    if not timings:
        raise ConfigError(
            f"cannot calibrate: {refused[0]}; raise --limit-memory, free memory, "
            "or train with a smaller batch (train.batch)"
        )
    return threads or 1, timings


def _measure_watts(submodel: Submodel, batch: int, data: Any, site: TimingSite) -> float:
    """Return the power of this machine while it trains a submodel that fits its memory, through the
    cache; 0 if nothing here measures it, or a sensor shows what no machine uses.
    """
    counters = read_counters()
    if not counters and read_watts() is None:
        return 0.0
    if counters and site.trainer.accelerator is not None:
        return 0.0  # counters cover the processors only

    def measure() -> float:
        step = _make_step(submodel, batch, data, site.trainer)
        with Meter() as meter:
            time_calls(step)
        return meter.watts

    what = {**_describe_examples("power", batch, data), "submodel": make_timing_key(submodel)}
    watts = site.notebook.value(what, measure, keep=":" not in submodel.network.family)
    return watts if 0 <= watts <= MOST_WATTS else 0.0  # others would refuse the profile


def make_timing_key(submodel: Submodel) -> dict[str, Any]:
    """Return a submodel as plain values, without fields that do not affect its time: units of
    the data, names and owners.
    """
    network = replace(submodel.network, mean=(), std=(), shift=(), scale=(), label="")
    return asdict(replace(submodel, network=network, owner=""))


def time_step(submodel: Submodel, batch: int, data: Any, trainer: Trainer) -> float:
    """Return the seconds of one training step (forward, backward, update)."""
    return time_calls(_make_step(submodel, batch, data, trainer))


def _make_step(submodel: Submodel, batch: int, data: Any, trainer: Trainer) -> Callable[[], object]:
    size = max(2, min(batch, len(data.x)))
    return trainer.stepper(submodel, data.x[:size], data.y[:size], data.labels)


def time_calls(step: Callable[[], object]) -> float:
    """Return the seconds of one call: the mean of the fastest window. Under a CPU quota the fastest
    single call would mislead. Two windows that agree are enough.
    """
    for _ in range(WARM_UP):
        step()
    means = list[float]()
    while len(means) < WINDOWS and not (len(means) == 2 and agree(*means)):
        means.append(time_window(step, WINDOW))
    return min(means)


def time_window(step: Callable[[], object], seconds: float) -> float:
    """Return the mean seconds of the calls that take this long together, at least `STEPS`."""
    steps, start = 0, time.perf_counter()
    while steps < STEPS or time.perf_counter() - start < seconds:
        step()
        steps += 1
    return (time.perf_counter() - start) / steps


def agree(one: float, other: float) -> bool:
    """Return True if neither of two measured times was disturbed."""
    return abs(one - other) <= AGREEMENT * min(one, other)


def _choose_threads(submodel: Submodel, batch: int, data: Any, site: TimingSite) -> int:
    """Return 1 or the most threads, whichever is faster, through the cache: sharing little work
    among threads, or processors with other agents, costs more than it gains. Without enough memory
    to try, return 1.
    """
    most, trainer = site.limits.threads, site.trainer
    if most == 1:
        return 1

    def compare() -> float:
        step, means = _make_step(submodel, batch, data, trainer), dict.fromkeys((1, most), math.inf)
        for _ in range(COMPARED):
            for threads in means:
                trainer.use_threads(threads)
                step()  # warms up
                means[threads] = min(means[threads], time_window(step, SHORT_WINDOW))
        return min(means, key=means.__getitem__)

    about = _describe_examples("choose threads", batch, data)
    try:
        return int(_measure(submodel, batch, site, about, compare))
    except InsufficientMemory:
        return 1


def _time_step(submodel: Submodel, batch: int, data: Any, site: TimingSite, threads: int) -> float:
    """Return the seconds of a training step through the cache. Raises InsufficientMemory."""
    about = {**_describe_examples("train", batch, data), "threads": threads}
    step = partial(time_step, submodel, batch, data, site.trainer)
    return _measure(submodel, batch, site, about, step)


def _describe_examples(work: str, batch: int, data: Any) -> dict[str, Any]:
    size = max(2, min(batch, len(data.x)))
    return {"work": work, "batch": size, "dtype": str(data.x.dtype)}


def _measure(
    submodel: Submodel,
    batch: int,
    site: TimingSite,
    what: Mapping[str, Any],
    take: Callable[[], float],
) -> float:
    """Measure through the cache, within the free memory; a user's own network is timed each time,
    since its code may have changed. Raises InsufficientMemory.
    """
    return site.notebook.value(
        {**what, "submodel": make_timing_key(submodel)},
        partial(_measure_within_memory, submodel, batch, site, take),
        keep=":" not in submodel.network.family,
    )


def _measure_within_memory(
    submodel: Submodel, batch: int, site: TimingSite, take: Callable[[], float]
) -> float:
    """Run `take` if the submodel's training fits the free memory. Raises InsufficientMemory."""
    needed = site.trainer.training_memory(submodel, batch)
    free = measure_training_memory(site.limits, site.trainer, read_board())
    what = (
        f"{submodel.name} at batch {batch} needs about {needed / 1e6:.0f} MB to train, but only "
        f"{free / 1e6:.0f} MB are left after PyTorch and the agent"
    )
    if needed > free:
        raise InsufficientMemory(what)
    try:
        return float(take())
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "memory" in str(error):
            raise InsufficientMemory(f"{what}, which was not enough") from error
        raise
