"""`edge-agent bench`: measure how fast this device runs and trains each submodel, or any ONNX
file, with each runtime. Each row runs in a fresh process.

Method: batch 1, one request after the other, 10 warm-up runs, then at least 100 runs and 3 s
    (sustained: 60 s); p90 decides. Training steps are complete (forward, backward, update).
    Files and predictions are prepared before the measurements, and never in the measuring process.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path

import click
import msgspec

from edge_agent.bench import report as bench_report
from edge_agent.bench import terminal_table
from edge_agent.bench.benchmark_targets import (
    INT8,
    Target,
    check_files,
    check_provider,
    find_network,
    prepare_target,
    resolve_runtimes,
    select_submodels,
)
from edge_agent.bench.measurement_process import STEP_SECONDS, Plan
from edge_agent.bench.measurement_process_control import run_plans
from edge_agent.bench.report import Report, Row, take_fingerprint, to_ms
from edge_agent.device.process_limits import Limits
from export.latency import SECONDS
from federated.defaults import MODEL
from federated.errors import ConfigError, UsageError, explain_os_errors
from federated.runtime.console import Say, handle_sigterm, show_progress
from federated.safe_text import make_safe
from federated.task import Timing
from models.submodel import Submodel

__all__ = ["FAILED", "INTERRUPTED", "Request", "bench", "predict"]


SUSTAINED = 60.0  # seconds of inference, long enough to show thermal throttling
FAILED, INTERRUPTED = 1, 130  # exit codes: a row failed or was slower than allowed; ctrl-C
MAX_THREADS = 1024  # threads
MAX_VALUES = 1 << 28  # numbers of one example
PROBE_SECONDS, PROBE_RUNS = 0.5, 30  # minimum seconds and runs of a probe


@dataclass(frozen=True)
class Request:
    """Options of a benchmark.

    files: ONNX files; empty to measure submodels of `model`
    model: name of the network
    inputs: shape of one example
    classes: number of outputs
    widths: widths of submodels
    depths: depths of submodels; empty for full depth
    patterns: patterns that submodel names must match
    runtimes: runtimes to measure
    threads: thread counts to measure
    provider: short name of the execution provider
    batch: examples of a training step, 0 for no training
    limits: limits of the measuring process
    sustained: measure inference for a minute
    predict: also predict times from small probes
    out: report to write
    compare: older report to compare with
    plot: plot to write
    fail_above: largest accepted ratio to `compare`
    """

    files: tuple[Path, ...] = ()
    model: str = MODEL
    inputs: tuple[int, ...] = (3, 32, 32)
    classes: int = 10
    widths: tuple[float, ...] = (0.25, 0.5, 1.0)
    depths: tuple[int, ...] = ()
    patterns: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    threads: tuple[int, ...] = (1,)
    provider: str = "cpu"
    batch: int = 32
    limits: Limits = field(default_factory=Limits)
    sustained: bool = False
    predict: bool = True
    out: Path | None = None
    compare: Path | None = None
    plot: Path | None = None
    fail_above: float | None = None


@dataclass(frozen=True)
class ProbeTimings:
    """Timings of probes, from which times of other submodels are predicted.

    inference: timings of one inference
    training: timings of training steps
    """

    inference: tuple[Timing, ...] = ()
    training: tuple[Timing, ...] = ()


@dataclass(frozen=True)
class Work:
    """Everything to measure.

    targets: networks to measure
    probes: networks to predict from
    ways: pairs of runtime and thread count
    """

    targets: tuple[Target, ...]
    probes: tuple[Target, ...]
    ways: tuple[tuple[str, int], ...]


def bench(request: Request, form: str, say: Say) -> int:
    """Measure, print (form: text or json) and write a report. Return the exit code: 0, FAILED or
    INTERRUPTED; an interrupt keeps the finished rows.

    Raises Unknown, UsageError, ConfigError, ExportError and MissingExtra before anything is
    measured; ConfigError at the end if a file cannot be written.
    """
    old = _check_request(request)
    report = Report(
        take_fingerprint(request.limits), (), datetime.now(UTC).isoformat(timespec="seconds")
    )
    interrupted = False
    with tempfile.TemporaryDirectory(prefix="espalier-bench-") as folder, handle_sigterm():
        work = _prepare(request, Path(folder), say)
        report = replace(report, probes=tuple(target.name for target in work.probes))
        plans = [(target, way) for target in work.targets for way in work.ways]
        try:
            predictions = (
                {way: _calibrate(request, work.probes, *way, say) for way in work.ways}
                if work.probes
                else {}
            )
            for number, (target, way) in enumerate(plans, 1):
                row = _measure_target(request, target, *way, predictions.get(way, ProbeTimings()))
                report = replace(report, rows=(*report.rows, row))
                _save_progress(report, request.out, say)
                say(
                    f"{number}/{len(plans)} {row.submodel} {row.runtime}, threads "
                    f"{row.threads}: {terminal_table.summarise(row)}"
                )
        except KeyboardInterrupt:
            interrupted = True
            say(f"interrupted; kept {len(report.rows)} of {len(plans)} rows")
    if not report.rows:
        return INTERRUPTED
    slow = _print(report, old, request, form, say)
    if request.out is not None:
        bench_report.write(report, request.out)
    if request.plot is not None:
        _draw(report, request.plot, say)
    if interrupted:
        return INTERRUPTED
    return FAILED if slow or any(row.error for row in report.rows) else 0


def _check_request(request: Request) -> Report | None:
    """Check the request before a long measurement, and return the report to compare with."""
    if request.fail_above is not None and request.compare is None:
        raise UsageError(
            "--fail-above requires an older benchmark to compare with: add --compare OLD.json"
        )
    if not request.threads or not all(1 <= count <= MAX_THREADS for count in request.threads):
        raise UsageError(
            f"--threads: expected numbers from 1 to {MAX_THREADS}, found "
            f"{','.join(map(str, request.threads)) or 'none'}"
        )
    if len(set(request.threads)) < len(request.threads):
        raise UsageError(
            f"--threads: expected each number once, found {','.join(map(str, request.threads))}"
        )
    if request.batch < 0 or request.batch == 1:
        raise UsageError(
            "--batch: expected at least 2 examples (batch norm needs a variance), or 0 for no "
            f"training, found {request.batch}"
        )
    if min(request.inputs, default=0) < 1 or math.prod(request.inputs) > MAX_VALUES:
        raise UsageError(
            f"--inputs: expected sizes of at least 1, at most {MAX_VALUES} values in all, "
            f"found {','.join(map(str, request.inputs)) or 'none'}"
        )
    if not request.widths or not all(0 < width <= 1 for width in request.widths):
        raise UsageError(
            "--widths: expected numbers above 0 and at most 1, found "
            f"{','.join(f'{width:g}' for width in request.widths) or 'none'}"
        )
    if any(depth < 1 for depth in request.depths):
        raise UsageError(
            f"--depths: expected numbers of at least 1, found {','.join(map(str, request.depths))}"
        )
    if request.out is not None:
        bench_report.check_writable("--out", request.out)
    if request.plot is not None:
        from edge_agent.bench.plot import SUFFIXES

        bench_report.check_writable("--plot", request.plot, SUFFIXES)
    return None if request.compare is None else bench_report.read(request.compare)


def _prepare(request: Request, folder: Path, say: Say) -> Work:
    if request.files:
        wanted = resolve_runtimes(request.runtimes or ("onnx",), None)
        return Work(
            check_files(request.files, request.provider),
            (),
            tuple(product(wanted, request.threads)),
        )
    from models.menu import probes

    network = find_network(request.model, request.inputs, request.classes)
    wanted = resolve_runtimes(request.runtimes or ("torch", "onnx", INT8), network)
    check_provider(request.provider, wanted)
    submodels = select_submodels(network, request.widths, request.depths, request.patterns)
    small = (
        probes(network, (1, max(map(len, submodels[-1].mask), default=1)))
        if request.predict
        else ()
    )

    def ready(submodel: Submodel, what: str) -> Target:
        say(f"preparing {submodel.name} {what}")
        return prepare_target(request.model, submodel, wanted, request.batch, folder)

    targets = tuple(ready(submodel, "for measuring") for submodel in submodels)
    known = {target.submodel: target for target in targets}
    return Work(
        targets,
        tuple(known.get(submodel) or ready(submodel, "for predictions") for submodel in small),
        tuple(product(wanted, request.threads)),
    )


def _save_progress(report: Report, out: Path | None, say: Say) -> None:
    """Write the rows so far. A full disk does not stop the measurement: the report is written
    again at the end.
    """
    if out is not None:
        try:
            bench_report.write(report, out)
        except ConfigError as error:
            say(f"cannot save the rows so far: {error}")


def _calibrate(
    request: Request, probes: Sequence[Target], runtime: str, threads: int, say: Say
) -> ProbeTimings:
    """Measure the probes in one process, and return their timings; none if that failed."""
    plans = [
        replace(
            _plan(request, target, runtime, threads),
            runs=PROBE_RUNS,
            seconds=PROBE_SECONDS,
            step_seconds=PROBE_SECONDS,
        )
        for target in probes
    ]
    with show_progress(f"timing small submodels with {runtime}, threads {threads}"):
        rows = run_plans(plans, request.limits)
    if why := next((row.error for row in rows if row.error), ""):
        say(f"no predictions for {runtime}, threads {threads}: {why}")
        return ProbeTimings()
    timed = [(target.submodel, row) for target, row in zip(probes, rows, strict=True)]
    return ProbeTimings(
        tuple(Timing(one, 1, row.p50_ms / 1000) for one, row in timed if one and row.p50_ms),
        tuple(
            Timing(one, request.batch, row.step_least_ms / 1000)
            for one, row in timed
            if one and row.step_least_ms
        ),
    )


def _plan(request: Request, target: Target, runtime: str, threads: int) -> Plan:
    file, torch = target.files[runtime], runtime == "torch"
    trains = torch and request.batch > 0
    row = Row(
        network=target.network,
        submodel=target.name,
        runtime=runtime,
        provider=request.provider,
        threads=threads,
        parameters=target.parameters,
        macs=target.macs,
        training_macs=target.training_macs,
        file_bytes=file.stat().st_size,
        batch=request.batch if trains else None,
        predicted_bytes=target.memory if trains else None,
    )
    seconds = SUSTAINED if request.sustained else SECONDS
    submodel = target.submodel if torch else None
    return Plan(row, str(file), submodel, seconds=seconds, step_seconds=STEP_SECONDS)


def _measure_target(
    request: Request, target: Target, runtime: str, threads: int, timed: ProbeTimings
) -> Row:
    with show_progress(f"measuring {target.name} with {runtime}, threads {threads}"):
        (row,) = run_plans([_plan(request, target, runtime, threads)], request.limits)
    row = replace(
        row, predicted_ms=to_ms(predict(timed.inference, target.submodel, 1, training=False))
    )
    if row.batch is None:
        return row
    seconds = predict(timed.training, target.submodel, row.batch, training=True)
    return replace(row, predicted_step_ms=to_ms(seconds))


def predict(
    timings: tuple[Timing, ...], submodel: Submodel | None, batch: int, *, training: bool
) -> float | None:
    """Predict the seconds of one inference (p50), or of a training step (the fastest), from the
    timings of probes; None for the probes themselves.
    """
    if submodel is None or not timings or any(one.submodel == submodel for one in timings):
        return None
    from federated.training import time_prediction

    return time_prediction.predict(timings, submodel, batch, training=training)


def _print(report: Report, old: Report | None, request: Request, form: str, say: Say) -> bool:
    """Print the result, and return whether a row was slower than allowed."""
    ratios = () if old is None else bench_report.compare(report, old)
    screen = terminal_table.open_console(error=form == "json")
    show = partial(screen.print, markup=False, highlight=False)
    show(make_safe(terminal_table.make_title(report)), style="bold")
    screen.print(terminal_table.make_table(report, screen.width))
    for text in terminal_table.list_footnotes(report):
        show(make_safe(text), soft_wrap=True)
    if old is not None:
        screen.print(
            terminal_table.make_ratio_table(ratios)
            if ratios
            else "nothing to compare: the benchmarks have no row in common"
        )
        for text in bench_report.list_differences(report, old):
            show(make_safe(f"differs from {request.compare}: {text}"), soft_wrap=True)
    limit = math.inf if request.fail_above is None else request.fail_above
    slow = [ratio for ratio in ratios if ratio.worst > limit]
    for ratio in slow:
        say(
            f"slower than {limit:g} times: {ratio.row.submodel} {ratio.row.runtime}, "
            f"{ratio.worst:.2f} times"
        )
    if form == "json":
        result = msgspec.to_builtins(report)
        if old is not None:
            result["compared"] = [
                {"key": ratio.row.key, "p90": ratio.p90, "step": ratio.step} for ratio in ratios
            ]
        click.echo(msgspec.json.encode(result).decode())
    return bool(slow)


def _draw(report: Report, path: Path, say: Say) -> None:
    from edge_agent.bench.plot import draw

    with explain_os_errors(ConfigError, f"{path}: cannot be written"):
        drawn = draw(report, path)
    if not drawn:
        say(f"skipped the plot {path}: no row has both multiply-adds and a latency")
