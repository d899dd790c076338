"""Measure rows of `edge-agent bench` in a fresh process.

`python -m edge_agent.bench.measurement_process` reads plans (JSON, one line) from standard input,
so that its limits apply before it loads anything, and prints one line of JSON per plan. Importing
this module imports neither runtime: the first plan loads its runtime, whose memory counts as the
base.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edge_agent.bench.report import Row, to_ms
from edge_agent.device.energy import Meter
from edge_agent.device.heat_and_load import BUSY, Load, has_throttled, read_heat
from edge_agent.device.process_memory import read_memory, reset_peak
from export import latency as latencies
from export.latency import measure_latency
from federated.runtime.torch_import import defer_compiler
from federated.system.child_processes import take_output
from federated.system.process_limits import end_with_parent
from models.submodel import Submodel

if TYPE_CHECKING:
    from torch import nn

__all__ = ["STEP_SECONDS", "Plan", "main"]


STEPS = 10  # minimum number of timed training steps
STEP_SECONDS = 3.0  # minimum duration of the training measurement
STEP_WARM_UP = 2  # steps before the measurement


@dataclass(frozen=True)
class Plan:
    """One row to measure.

    row: what is known of the row before the measurement; `batch` None for no training
    file: weights as `federated.wire.tensors` writes them, or an ONNX graph
    submodel: submodel of the weights
    runs: minimum number of inferences
    seconds: minimum duration of inference
    step_seconds: minimum duration of training
    """

    row: Row
    file: str
    submodel: Submodel | None = None
    runs: int = latencies.RUNS
    seconds: float = latencies.SECONDS
    step_seconds: float = STEP_SECONDS


def main() -> None:
    """Answer plans; all other output goes to standard error."""
    end_with_parent()
    defer_compiler()
    out = os.fdopen(take_output(), "w", buffering=1)
    for plan in msgspec.json.decode(sys.stdin.readline(), type=list[Plan]):
        try:
            row = measure_row(plan)
        # a failed row reports its error, and the others continue
        except (Exception, SystemExit) as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            row = replace(plan.row, error=message)
        print(msgspec.json.encode(row).decode(), file=out)


def measure_row(plan: Plan) -> Row:
    """Measure inference of one example, then training. Raises the runtime's errors."""
    return _measure_torch(plan) if plan.row.runtime == "torch" else _measure_onnx(plan)


def _measure_onnx(plan: Plan) -> Row:
    from edge_agent.bench.onnx_graph import Graph, draw_inputs

    reset_peak()
    base, start = read_memory()[0], time.perf_counter()
    graph = Graph(Path(plan.file), plan.row.provider, plan.row.threads)
    load, feed = time.perf_counter() - start, draw_inputs(graph)
    return _measure_inference(plan, base, load, lambda: graph.run(feed))


def _measure_torch(plan: Plan) -> Row:
    import torch

    from edge_agent.bench.benchmark_targets import draw_noise
    from models.submodel_building import build  # noqa: F401 (part of the base)

    assert plan.submodel is not None
    torch.set_num_threads(plan.row.threads)
    reset_peak()
    base, start = read_memory()[0], time.perf_counter()
    net = _load_network(plan)
    load = time.perf_counter() - start
    x = torch.from_numpy(draw_noise(plan.submodel.network, 1)[0])

    def call() -> None:
        with torch.inference_mode():
            net(x.to(plan.row.provider)).cpu()  # .cpu() waits for the result, also on a GPU

    row = _measure_inference(plan, base, load, call)
    return row if row.batch is None else _measure_training(plan, row, row.batch, net)


def _load_network(plan: Plan) -> nn.Module:
    import torch

    from federated.wire import tensors
    from models.submodel_building import arrange_channels, build

    assert plan.submodel is not None
    _, values = tensors.decode(Path(plan.file).read_bytes())
    net = build(plan.submodel)
    net.load_state_dict(
        {name: torch.from_numpy(value.copy()) for name, value in values.items()}, strict=False
    )
    return arrange_channels(net, plan.submodel).to(plan.row.provider).eval()


def _measure_inference(plan: Plan, base: int, load: float, call: Callable[[], Any]) -> Row:
    """Measure latency, memory, sensors and energy.

    base: bytes resident before the load
    """
    for _ in range(latencies.WARM_UP):
        call()
    # before the measurement: a minute of short calls stores millions of times in memory
    peak = read_memory()[1]
    others, before = Load(), read_heat()
    with Meter() as meter:
        found = measure_latency(call, warm_up=0, runs=plan.runs, seconds=plan.seconds)
    busy, after = others.share(), read_heat()
    silent = before.throttled is None and before.ever is None and before.events is None
    return replace(
        plan.row,
        load_ms=to_ms(load),
        runs=found.runs,
        seconds=plan.seconds,
        least_ms=to_ms(found.least),
        p50_ms=to_ms(found.p50),
        p90_ms=to_ms(found.p90),
        p95_ms=to_ms(found.p95),
        p99_ms=to_ms(found.p99),
        base_bytes=base,
        peak_bytes=peak or None,
        joules=None if meter.joules is None else meter.joules / found.runs,
        celsius_before=before.celsius,
        celsius_after=after.celsius,
        mhz_before=before.mhz,
        mhz_after=after.mhz,
        throttled=None if silent else has_throttled(before, after),
        busy=round(busy, 3),
        loaded=busy >= BUSY,
    )


def _measure_training(plan: Plan, row: Row, batch: int, net: nn.Module) -> Row:
    """Add the measurements of training to those of inference."""
    reset_peak()
    others, before = Load(), read_heat()
    times = _time_steps(plan, batch, net)
    busy, after = others.share(), read_heat()
    hot, peak = has_throttled(before, after), max(row.peak_bytes or 0, read_memory()[1])
    return replace(
        row,
        step_least_ms=to_ms(min(times)),
        step_median_ms=to_ms(statistics.median(times)),
        training_peak_bytes=peak or None,
        throttled=None if row.throttled is None else row.throttled or hot,
        busy=max(row.busy or 0.0, round(busy, 3)),
        loaded=row.loaded or busy >= BUSY,
    )


def _time_steps(plan: Plan, batch: int, net: nn.Module) -> list[float]:
    """Return the seconds of whole training steps (forward, backward, update) on noise."""
    from edge_agent.bench.benchmark_targets import draw_noise
    from federated.task import Recipe
    from federated.training.training_inputs import TrainingSet
    from federated.training.training_loop import train

    assert plan.submodel is not None
    x, y = draw_noise(plan.submodel.network, batch)
    # a learning rate of 0 keeps the weights: there is nothing to learn from noise
    recipe, times, start = Recipe(batch=batch, lr=0.0), list[float](), 0.0
    while len(times) < STEP_WARM_UP + STEPS or time.perf_counter() - start < plan.step_seconds:
        if len(times) == STEP_WARM_UP:
            start = time.perf_counter()
        before = time.perf_counter()
        train(net, plan.submodel, recipe, TrainingSet(x, y), seed=0)
        times.append(time.perf_counter() - before)
    return times[STEP_WARM_UP:]


if __name__ == "__main__":
    main()
