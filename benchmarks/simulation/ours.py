"""Simulate with this project: in one process, or in one process per processor."""

from __future__ import annotations

import tempfile
from pathlib import Path
from threading import Event

from benchmarks.simulation.meter import Measured, Meter
from benchmarks.simulation.task import CHOSEN, DEVICES, LR, SOURCE
from coordinator.observe.events import Event as RunEvent
from coordinator.observe.events import RoundEnded
from coordinator.run.config_sources import ConfigSources
from coordinator.simulate.simulation import simulate_run
from federated.runtime.torch_import import defer_compiler

__all__ = ["in_one_process", "in_processes"]

SETTINGS = (
    "name=digits",
    "method.name=fedavg",
    "model.name=benchmarks.simulation.task:make_layers",
    f"train.lr={LR}",
    "train.momentum=0.0",
    "train.batch=1000",
    f"data.name={SOURCE.data}",
    f"simulate.agents={DEVICES}",
    f"simulate.partition={SOURCE.partition}",
    f"simulate.held={SOURCE.held}",
    f"fleet.fraction={CHOSEN / DEVICES}",
    "evaluate.between=false",
    "evaluate.devices=false",
    "evaluate.calibrate=coordinator",
)


def in_one_process(rounds: int) -> Measured:
    return simulate(rounds, Event())


def in_processes(rounds: int) -> Measured:
    return simulate(rounds, None)


def simulate(rounds: int, here: Event | None) -> Measured:
    """Simulate. here: train in this thread; None: in worker processes."""
    accuracy = 0.0
    defer_compiler()  # as the commands and the package `espalier` do
    meter = Meter(rounds)

    def read(event: RunEvent) -> None:
        nonlocal accuracy
        if isinstance(event, RoundEnded):
            meter.end_round()
            accuracy = event.done.scores[0].accuracy if event.done.scores else accuracy

    sources = ConfigSources(settings=(*SETTINGS, f"rounds={rounds}", f"evaluate.every={rounds}"))
    with tempfile.TemporaryDirectory(prefix="espalier-simulation-") as folder:
        simulate_run(sources, Path(folder), here, read, resume=False)
    return meter.conclude(accuracy)
