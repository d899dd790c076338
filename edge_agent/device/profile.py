"""What a device measures of itself before it joins: processors, memory, data moments, and the time
of a training step.

Runs in the training process, under its limits, so that what is measured is what training will have.
Torch-free: the trainer computes.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from edge_agent.device.board import read_board
from edge_agent.device.limits import Limits, available_cpus, available_memory
from edge_agent.device.measurement_cache import Notebook, surroundings
from federated.device.trainers.trainer import Trainer
from federated.errors import ConfigError
from federated.task import Board, Card, Timing
from federated.wire.messages import Run
from models.submodel import Submodel

__all__ = [
    "Measured",
    "Seen",
    "TimingSite",
    "best_threads",
    "look",
    "measure",
    "named",
    "time_step",
    "timed",
]

WARM_UP = 2  # steps not counted
WINDOWS = 3  # the quickest counts: others were disturbed by something else
WINDOW = 0.3  # seconds of one: many scheduling periods, so that a fraction of a processor shows
STEPS = 2  # and at least so many


@dataclass(frozen=True)
class Seen:
    """What there is to see of a device without any work; fields as in `federated.task.Profile`."""

    host: str
    system: str
    cpus: float
    memory: int
    runtime: str
    board: Board


@dataclass(frozen=True)
class Measured:
    """A profile without what only the link and the owner know; fields as in
    `federated.task.Profile`.
    """

    seen: Seen
    data: Card
    timings: tuple[Timing, ...]
    survey: Mapping[str, Any]


class NoRoom(Exception):
    """A submodel that cannot be timed in the memory that is left; its text says how much it
    needs.
    """


def look(limits: Limits, trainer: Trainer) -> Seen:
    """This process with its trainer, under its limits. A board's GPU that has the processor's
    memory has one budget with it.
    """
    board, memory = read_board(), available_memory(limits)
    if trainer.accelerator is not None:
        own = trainer.accelerator.free()
        memory = min(own, memory) if board.shared else own
    system = f"{platform.system()} {platform.machine()}"
    return Seen(
        platform.node(),
        system,
        available_cpus(limits),
        memory,
        trainer.runtime,
        board,
    )


def measure(
    run: Run, data: Any, limits: Limits, trainer: Trainer, *, fresh: bool = False
) -> Measured:
    """Measures this process, on its own data, with the submodels that the run asks to be timed;
    settles how many threads it uses.

    fresh: takes no timing from the cache. Raises ConfigError where none of the submodels fits the
    memory.
    """
    notebook = Notebook(surroundings(limits, trainer.runtime), fresh=fresh)
    site = TimingSite(limits, trainer, notebook)
    timings: tuple[Timing, ...] = ()
    if run.calibration:
        _, timings = timed(run.calibration, run.batch, data, site)
    seen = look(limits, trainer)
    return Measured(seen, data.card(), timings, trainer.survey(run, data, seen.memory))


@dataclass(frozen=True)
class TimingSite:
    """Where training steps are timed.

    limits: of this process.
    trainer: what is timed.
    notebook: known timings; new ones are added.
    """

    limits: Limits
    trainer: Trainer
    notebook: Notebook


def timed(
    submodels: Sequence[Submodel], batch: int, data: Any, site: TimingSite, threads: int = 0
) -> tuple[int, tuple[Timing, ...]]:
    """The number of threads that this process uses from now on, and the time of a step of each
    submodel that fits. threads: the number to use; 0 finds the best.

    Raises ConfigError if none fits.
    """
    trainer, notebook = site.trainer, site.notebook
    size = max(2, min(batch, len(data.x)))
    about = {"work": "train", "batch": size, "dtype": str(data.x.dtype)}
    if trainer.accelerator is None:
        threads = threads or _threads(submodels[-1], batch, data, site, about)
        trainer.use_threads(threads)
    timings, refused = list[Timing](), list[NoRoom]()
    for submodel in submodels:
        what = {**about, "submodel": named(submodel), "threads": threads}
        try:
            seconds = _value(notebook, submodel, what, partial(_step, submodel, batch, data, site))
        except NoRoom as error:
            refused.append(error)
        else:
            timings.append(Timing(submodel, batch, seconds))
    if not timings:
        raise ConfigError(
            f"no calibration possible: {refused[0]}: raise --limit-memory, free memory, "
            "or train with a smaller batch (train.batch)"
        )
    return threads or 1, tuple(timings)


def named(submodel: Submodel) -> dict[str, Any]:
    """A submodel as plain values, without what its time does not depend on: units of the data,
    names and owners.
    """
    network = replace(submodel.network, mean=(), std=(), shift=(), scale=(), label="")
    return asdict(replace(submodel, network=network, owner=""))


def best_threads(submodel: Submodel, batch: int, data: Any, most: int, trainer: Trainer) -> int:
    """One or `most`, whichever steps quicker: threads that share small work, or processors with
    other agents, cost more than they bring.
    """
    times = {}
    for threads in sorted({1, most}):
        trainer.use_threads(threads)
        times[threads] = time_step(submodel, batch, data, trainer)
    return min(times, key=times.__getitem__)


def time_step(submodel: Submodel, batch: int, data: Any, trainer: Trainer) -> float:
    """Seconds of one training step (forward, backward, update): the mean of the quickest window,
    since under a quota the quickest step would lie.
    """
    size = max(2, min(batch, len(data.x)))
    step = trainer.stepper(submodel, data.x[:size], data.y[:size], data.labels)
    for _ in range(WARM_UP):
        step()
    means = []
    for _ in range(WINDOWS):
        steps, start = 0, time.perf_counter()
        while steps < STEPS or time.perf_counter() - start < WINDOW:
            step()
            steps += 1
        means.append((time.perf_counter() - start) / steps)
    return min(means)


def _threads(
    submodel: Submodel,
    batch: int,
    data: Any,
    site: TimingSite,
    about: Mapping[str, Any],
) -> int:
    """The better number of threads, known or tried out; one where there is no room to try."""
    most = site.limits.threads
    if most == 1:
        return 1
    what = {**about, "work": "threads", "submodel": named(submodel), "most": most}
    trial = partial(best_threads, submodel, batch, data, most, site.trainer)
    try:
        return int(
            _value(site.notebook, submodel, what, partial(_within, submodel, batch, site, trial))
        )
    except NoRoom:
        return 1


def _value(
    notebook: Notebook, submodel: Submodel, what: Mapping[str, Any], take: Callable[[], float]
) -> float:
    """A network of the user's own is timed each time: its code may have changed."""
    return notebook.value(what, take, keep=":" not in submodel.network.family)


def _step(submodel: Submodel, batch: int, data: Any, site: TimingSite) -> float:
    return _within(submodel, batch, site, partial(time_step, submodel, batch, data, site.trainer))


def _within(submodel: Submodel, batch: int, site: TimingSite, take: Callable[[], float]) -> float:
    """What `take` measures, where the submodel's training fits what is free. Raises NoRoom."""
    needed = site.trainer.training_memory(submodel, batch)
    free = look(site.limits, site.trainer).memory
    what = (
        f"{submodel.name} at batch {batch} needs about {needed / 1e6:.0f} MB to train, and "
        f"{free / 1e6:.0f} MB are left"
    )
    if needed > free:
        raise NoRoom(what)
    try:
        return float(take())
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "memory" in str(error):
            raise NoRoom(f"{what}, which was not enough") from error
        raise
