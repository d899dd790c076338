"""The fresh process that measures rows of a benchmark: `python -m edge_agent.bench.row_process`.

It reads plans (JSON, one line) from standard input, so that its limits apply before it loads
anything, and prints one line of JSON per plan. Importing this module imports neither runtime: the
first plan loads its runtime, whose memory counts as the base.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import psutil

from edge_agent.device.disturbances import Heat, Load, read_heat, throttled_between
from edge_agent.device.energy import Meter
from edge_agent.device.limits import end_with_parent
from export import latency as latencies
from export.latency import Latency, measure_latency
from federated.runtime.compiler_import import defer_compiler
from models.submodel import Submodel

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "STEP_SECONDS",
    "Answer",
    "Engine",
    "Measurement",
    "Memory",
    "Plan",
    "Step",
    "main",
    "measure_row",
]

Engine = Literal["torch", "onnx"]

STEPS = 10  # minimum number of timed training steps
STEP_SECONDS = 3.0  # minimum duration of the training measurement
STEP_WARM_UP = 2  # steps before the measurement


@dataclass(frozen=True)
class Plan:
    """One measurement to make.

    engine: the runtime
    file: weights as `federated.wire.tensors` writes them, or an ONNX graph
    provider: short name of the execution provider
    threads: number of threads
    submodel: submodel of the weights
    batch: examples of a training step, 0 for no training
    runs: minimum number of inferences
    seconds: minimum duration of inference
    step_seconds: minimum duration of training
    """

    engine: Engine
    file: str
    provider: str = "cpu"
    threads: int = 1
    submodel: Submodel | None = None
    batch: int = 0
    runs: int = latencies.RUNS
    seconds: float = latencies.SECONDS
    step_seconds: float = STEP_SECONDS


@dataclass(frozen=True)
class Memory:
    """Resident bytes of the process.

    base: with the runtime loaded
    peak: peak up to the first answers
    training: peak up to the end of training
    """

    base: int
    peak: int
    training: int | None = None


@dataclass(frozen=True)
class Step:
    """Seconds of a training step.

    least: the fastest
    median: the median
    """

    least: float
    median: float


@dataclass(frozen=True)
class Measurement:
    """Results of a plan.

    load: seconds to load the file
    latency: latency of one inference
    memory: memory of the process
    before, after: sensors before and after inference
    busy: fraction of the processors that others used, in inference or training, whichever is higher
    throttled: whether the device throttled in either; None if unknown
    step: training step, if measured
    joules: energy of one inference
    """

    load: float
    latency: Latency
    memory: Memory
    before: Heat
    after: Heat
    busy: float
    throttled: bool | None = None
    step: Step | None = None
    joules: float | None = None


@dataclass(frozen=True)
class Answer:
    """Result of a plan: the measurement, or why it failed."""

    measured: Measurement | None = None
    error: str = ""


def main() -> None:
    """Answer plans; all other output goes to standard error."""
    end_with_parent()
    defer_compiler()
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for plan in msgspec.json.decode(sys.stdin.readline(), type=list[Plan]):
        try:
            answer = Answer(measure_row(plan))
        # a failed row reports its error, and the others continue
        except (Exception, SystemExit) as error:
            answer = Answer(error=" ".join(f"{type(error).__name__}: {error}".split())[:300])
        print(msgspec.json.encode(answer).decode(), file=out)


def measure_row(plan: Plan) -> Measurement:
    """Measure inference of one example, then training. Raises the runtime's errors."""
    return _measure_torch(plan) if plan.engine == "torch" else _measure_onnx(plan)


def _measure_onnx(plan: Plan) -> Measurement:
    from edge_agent.bench.onnx_graph import Graph, draw_inputs

    _reset_peak()
    base, start = resident_memory()[0], time.perf_counter()
    graph = Graph(Path(plan.file), plan.provider, plan.threads)
    load, feed = time.perf_counter() - start, draw_inputs(graph)
    return _measure_inference(plan, base, load, lambda: graph.run(feed))


def _measure_torch(plan: Plan) -> Measurement:
    import torch

    from edge_agent.bench.target import noise
    from models.families.catalogue import build  # noqa: F401 (part of the base)

    assert plan.submodel is not None
    torch.set_num_threads(plan.threads)
    _reset_peak()
    base, start = resident_memory()[0], time.perf_counter()
    net = _load_network(plan)
    load = time.perf_counter() - start
    x = torch.from_numpy(noise(plan.submodel.network, 1)[0])

    def call() -> None:
        with torch.inference_mode():
            net(x.to(plan.provider)).cpu()  # .cpu() waits for the result, also on a GPU

    found = _measure_inference(plan, base, load, call)
    if not plan.batch:
        return found
    _reset_peak()
    others = Load()
    step = _measure_training(plan, net)
    memory = replace(found.memory, training=max(found.memory.peak, resident_memory()[1]))
    busy, after = max(found.busy, others.share()), read_heat()
    throttled = (
        None
        if found.throttled is None
        else found.throttled or throttled_between(found.after, after)
    )
    return replace(found, step=step, memory=memory, busy=busy, throttled=throttled)


def _load_network(plan: Plan) -> nn.Module:
    import torch

    from federated.wire import tensors
    from models.families.catalogue import build

    assert plan.submodel is not None
    _, values = tensors.decode(Path(plan.file).read_bytes())
    net = build(plan.submodel)
    net.load_state_dict(
        {name: torch.from_numpy(value.copy()) for name, value in values.items()}, strict=False
    )
    return net.to(plan.provider).eval()


def _reset_peak() -> None:
    """Reset the peak memory (proc(5)), to exclude the memory of imports."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _measure_inference(plan: Plan, base: int, load: float, call: Callable[[], Any]) -> Measurement:
    """Measure latency, memory, sensors and energy.

    base: bytes resident before the load
    """
    for _ in range(latencies.WARM_UP):
        call()
    # before the measurement: a minute of short calls stores millions of times in memory
    peak = resident_memory()[1]
    others, before = Load(), read_heat()
    with Meter() as meter:
        found = measure_latency(call, warm_up=0, runs=plan.runs, seconds=plan.seconds)
    busy, after = others.share(), read_heat()
    silent = before.throttled is None and before.ever is None and before.events is None
    return Measurement(
        load=load,
        latency=found,
        memory=Memory(base, peak),
        before=before,
        after=after,
        busy=busy,
        throttled=None if silent else throttled_between(before, after),
        joules=None if meter.joules is None else meter.joules / found.runs,
    )


def _measure_training(plan: Plan, net: nn.Module) -> Step:
    """Time whole training steps (forward, backward, update) on noise."""
    from edge_agent.bench.target import noise
    from federated.task import Recipe
    from federated.training.execution import TrainingSet
    from federated.training.loop import train

    assert plan.submodel is not None
    x, y = noise(plan.submodel.network, plan.batch)
    # a learning rate of 0 keeps the weights: there is nothing to learn from noise
    recipe, times, start = Recipe(batch=plan.batch, lr=0.0), list[float](), 0.0
    while len(times) < STEP_WARM_UP + STEPS or time.perf_counter() - start < plan.step_seconds:
        if len(times) == STEP_WARM_UP:
            start = time.perf_counter()
        before = time.perf_counter()
        train(net, plan.submodel, recipe, TrainingSet(x, y), seed=0)
        times.append(time.perf_counter() - before)
    del times[:STEP_WARM_UP]
    return Step(min(times), statistics.median(times))


def resident_memory() -> tuple[int, int]:
    """Return the current and peak resident bytes of this process. `ru_maxrss` would include the
    parent's peak.
    """
    now = psutil.Process().memory_info().rss
    found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return now, max(now, int(found[1]) * 1024) if found else now


if __name__ == "__main__":
    main()
