"""What one row of a benchmark takes and gives, and the fresh process that measures it: `python -m
edge_agent.bench.row`.

It waits for plans (JSON, one line) on standard input, so that limits are on it before it loads
anything, and prints one line of JSON per plan. Importing this imports neither runtime: what a
process needs is loaded by its first plan, and counts into its base.
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

from edge_agent.device.energy import Meter
from edge_agent.device.heat import Heat, read_heat, throttled_between
from edge_agent.device.limits import end_with_parent
from edge_agent.device.load import Load
from export import latency as latencies
from export.latency import Latency, latency
from models.submodel import Submodel

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "STEP_SECONDS",
    "Answer",
    "Engine",
    "Measured",
    "Memory",
    "Plan",
    "Step",
    "main",
    "measured",
]

Engine = Literal["torch", "onnx"]

STEPS = 10  # training steps timed at least
STEP_SECONDS = 3.0  # and for at least so long
STEP_WARM_UP = 2  # steps not counted


@dataclass(frozen=True)
class Plan:
    """What is to be measured. file: weights as `federated.wire.tensors` writes them, with their
    submodel, or an ONNX graph.

    provider: its short name. batch: examples of a training step, 0: no training. runs, seconds: of
    inference, at least; step_seconds: of training.
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
    """Resident bytes of the process: once the runtime is loaded; at the most, by its first answers;
    and by the end of training.
    """

    base: int
    peak: int
    training: int | None = None


@dataclass(frozen=True)
class Step:
    """Seconds of a training step: the least and the median."""

    least: float
    median: float


@dataclass(frozen=True)
class Measured:
    """load: seconds from the file to being ready. joules: of one inference. before, after: it.

    busy: share of the processors that others used meanwhile, in inference or in training, whichever
    is more. throttled: at any time in either; None where the machine does not say.
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
    """What a process says of a plan: what it measured, or why it could not."""

    measured: Measured | None = None
    error: str = ""


def main() -> None:
    """Answers plans; whatever else prints, prints to standard error."""
    end_with_parent()
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for plan in msgspec.json.decode(sys.stdin.readline(), type=list[Plan]):
        try:
            answer = Answer(measured(plan))
        except (Exception, SystemExit) as error:  # a row that fails says so, and the others go on
            answer = Answer(error=" ".join(f"{type(error).__name__}: {error}".split())[:300])
        print(msgspec.json.encode(answer).decode(), file=out)


def measured(plan: Plan) -> Measured:
    """Measures inference of one example, then training. Raises what the runtime raises."""
    return _by_torch(plan) if plan.engine == "torch" else _by_onnx(plan)


def _by_onnx(plan: Plan) -> Measured:
    from edge_agent.bench.graph import Graph, drawn

    _forget_peak()
    base, start = resident()[0], time.perf_counter()
    graph = Graph(Path(plan.file), plan.provider, plan.threads)
    load, feed = time.perf_counter() - start, drawn(graph)
    return _timed(plan, base, load, lambda: graph.run(feed))


def _by_torch(plan: Plan) -> Measured:
    import torch

    from edge_agent.bench.target import noise
    from models.families.catalogue import build  # noqa: F401 (part of the base)

    assert plan.submodel is not None
    torch.set_num_threads(plan.threads)
    _forget_peak()
    base, start = resident()[0], time.perf_counter()
    net = _loaded(plan)
    load = time.perf_counter() - start
    x = torch.from_numpy(noise(plan.submodel.network, 1)[0])

    def call() -> None:
        with torch.inference_mode():
            net(x.to(plan.provider)).cpu()  # what comes back has been computed, also on a GPU

    found = _timed(plan, base, load, call)
    if not plan.batch:
        return found
    _forget_peak()
    others = Load()
    step = _training(plan, net)
    memory = replace(found.memory, training=max(found.memory.peak, resident()[1]))
    busy, after = max(found.busy, others.share()), read_heat()
    throttled = (
        None
        if found.throttled is None
        else found.throttled or throttled_between(found.after, after)
    )
    return replace(found, step=step, memory=memory, busy=busy, throttled=throttled)


def _loaded(plan: Plan) -> nn.Module:
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


def _forget_peak() -> None:
    """Lets the peak begin now (proc(5)): what an import took is not the network's."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _timed(plan: Plan, base: int, load: float, call: Callable[[], Any]) -> Measured:
    """Latency, with what surrounds it; the base is what was resident before the load."""
    for _ in range(latencies.WARM_UP):
        call()
    # before it is timed: a minute of small calls leaves millions of times in memory
    peak = resident()[1]
    others, before = Load(), read_heat()
    with Meter() as meter:
        found = latency(call, warm_up=0, runs=plan.runs, seconds=plan.seconds)
    busy, after = others.share(), read_heat()
    silent = before.throttled is None and before.ever is None and before.events is None
    return Measured(
        load=load,
        latency=found,
        memory=Memory(base, peak),
        before=before,
        after=after,
        busy=busy,
        throttled=None if silent else throttled_between(before, after),
        joules=None if meter.joules is None else meter.joules / found.runs,
    )


def _training(plan: Plan, net: nn.Module) -> Step:
    """Times whole steps (forward, backward, update) as a device trains, on noise."""
    from edge_agent.bench.target import noise
    from federated.task import Recipe
    from federated.training.execution import TrainingSet
    from federated.training.loop import train

    assert plan.submodel is not None
    x, y = noise(plan.submodel.network, plan.batch)
    # weights that stay: noise teaches nothing
    recipe, times, start = Recipe(batch=plan.batch, lr=0.0), list[float](), 0.0
    while len(times) < STEP_WARM_UP + STEPS or time.perf_counter() - start < plan.step_seconds:
        if len(times) == STEP_WARM_UP:
            start = time.perf_counter()
        before = time.perf_counter()
        train(net, plan.submodel, recipe, TrainingSet(x, y), seed=0)
        times.append(time.perf_counter() - before)
    del times[:STEP_WARM_UP]
    return Step(min(times), statistics.median(times))


def resident() -> tuple[int, int]:
    """Bytes of this process now, and at the most. Not `ru_maxrss`: that of a fresh process begins
    with what its parent had.
    """
    now = psutil.Process().memory_info().rss
    found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return now, max(now, int(found[1]) * 1024) if found else now


if __name__ == "__main__":
    main()
