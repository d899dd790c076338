"""`edge-agent bench`: how fast this device runs and trains each submodel, or any ONNX file, with
each runtime; each row by a fresh process.

Method: batch 1, one request after the other, 10 warm-ups, then at least 100 runs and 3 s
(sustained: 60 s); p90 is the headline. Training steps are whole ones (forward, backward, update).
Files and predictions are made before anything is measured, and never in the process that measures.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import click
import msgspec

from edge_agent.bench import report as bench_report
from edge_agent.bench import table
from edge_agent.bench.prediction import Prediction
from edge_agent.bench.process import ask
from edge_agent.bench.report import Report, Row, fingerprint
from edge_agent.bench.row import STEP_SECONDS, Measured, Plan
from edge_agent.bench.target import (
    INT8,
    Target,
    check_provider,
    chosen,
    files,
    made_ready,
    named,
    runtimes,
)
from edge_agent.device.limits import Limits
from edge_agent.device.load import BUSY
from export.latency import SECONDS
from federated.errors import ConfigError, UsageError
from federated.runtime.console import Say, terminable
from federated.task import Timing
from models.submodel import Submodel

__all__ = ["FAILED", "INTERRUPTED", "SUSTAINED", "Request", "bench"]


SUSTAINED = 60.0  # seconds of inference that show whether heat slows it down
FAILED, INTERRUPTED = 1, 130  # exit codes: a row that failed or was slower than allowed; ctrl-C
MOST = 1024  # threads
QUICK, QUICK_RUNS = 0.5, 30  # seconds and runs of a probe


@dataclass(frozen=True)
class Request:
    """What is asked for. files: ONNX files, or none: submodels of `model`, of `widths` and `depths`
    (none: full), whose names fit `patterns`.

    batch: examples of a training step, 0: no training. predict: times are predicted from small
    probes too. fail_above: largest ratio to `compare`.
    """

    files: tuple[Path, ...] = ()
    model: str = "preresnet"
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
class Work:
    """What to measure, the probes to predict it from, and in which ways: runtimes and threads."""

    targets: tuple[Target, ...]
    probes: tuple[Target, ...]
    ways: tuple[tuple[str, int], ...]


def bench(request: Request, form: str, say: Say) -> int:
    """Measures, prints (form: text or json), writes; the exit code: 0, FAILED or INTERRUPTED, which
    keeps the rows that are done.

    Raises Unknown, UsageError, ConfigError, ExportError, MissingExtra before anything is measured;
    ConfigError at the end for a file that cannot be written.
    """
    old = _checked(request)
    report = Report(
        fingerprint(request.limits), (), datetime.now(UTC).isoformat(timespec="seconds")
    )
    interrupted = False
    with tempfile.TemporaryDirectory(prefix="espalier-bench-") as folder, terminable():
        work = _prepared(request, Path(folder), say)
        report = replace(report, probes=tuple(target.name for target in work.probes))
        plans = [(target, way) for target in work.targets for way in work.ways]
        try:
            predictions = (
                {way: _calibrated(request, work.probes, *way, say) for way in work.ways}
                if work.probes
                else {}
            )
            for number, (target, way) in enumerate(plans, 1):
                row = _row(request, target, *way, predictions.get(way, Prediction()))
                report = replace(report, rows=(*report.rows, row))
                _keep(report, request.out, say)
                say(
                    f"{number}/{len(plans)} {row.submodel} {row.runtime}, threads "
                    f"{row.threads}: {table.line(row)}"
                )
        except KeyboardInterrupt:
            interrupted = True
            say(f"interrupted; rows that are done, and kept: {len(report.rows)} of {len(plans)}")
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


def _checked(request: Request) -> Report | None:
    """The report to compare with; raises what can be wrong with the request before an hour of
    measuring.
    """
    if request.fail_above is not None and request.compare is None:
        raise UsageError(
            "--fail-above is the largest ratio to an older benchmark: name that by "
            "--compare OLD.json"
        )
    if request.fail_above is not None and not 0 < request.fail_above < math.inf:
        raise UsageError(
            f"--fail-above: expected a ratio above 0, such as 1.2, found {request.fail_above:g}"
        )
    if not request.threads or not all(1 <= count <= MOST for count in request.threads):
        raise UsageError(
            f"--threads: expected numbers from 1 to {MOST}, found "
            f"{','.join(map(str, request.threads)) or 'none'}"
        )
    if len(set(request.threads)) < len(request.threads):
        raise UsageError(
            f"--threads: expected each number once, found {','.join(map(str, request.threads))}"
        )
    if request.batch < 0 or request.batch == 1:
        raise UsageError(
            "--batch: expected at least 2 examples of a training step, since batch "
            f"norm needs a spread, or 0 for none, found {request.batch}"
        )
    if request.out is not None:
        bench_report.writable(request.out)
    if request.plot is not None:
        from edge_agent.bench.plot import SUFFIXES

        bench_report.writable(request.plot, SUFFIXES)
    return None if request.compare is None else bench_report.read(request.compare)


def _prepared(request: Request, folder: Path, say: Say) -> Work:
    if request.files:
        wanted = runtimes(request.runtimes or ("onnx",), None)
        return Work(
            files(request.files, request.provider), (), tuple(product(wanted, request.threads))
        )
    from models.families.catalogue import probes

    network = named(request.model, request.inputs, request.classes)
    wanted = runtimes(request.runtimes or ("torch", "onnx", INT8), network)
    check_provider(request.provider, wanted)
    submodels = chosen(network, request.widths, request.depths, request.patterns)
    small = (
        probes(network, (1, max(map(len, submodels[-1].mask), default=1)))
        if request.predict
        else ()
    )

    def ready(submodel: Submodel, what: str) -> Target:
        say(f"making {submodel.name} ready {what}")
        return made_ready(request.model, submodel, wanted, request.batch, folder)

    targets = tuple(ready(submodel, "to be measured") for submodel in submodels)
    known = {target.submodel: target for target in targets}
    return Work(
        targets,
        tuple(known.get(submodel) or ready(submodel, "to predict from") for submodel in small),
        tuple(product(wanted, request.threads)),
    )


def _keep(report: Report, out: Path | None, say: Say) -> None:
    """Row by row: what was measured is not lost. A full disk is no reason to measure no further: at
    the end it is tried again.
    """
    if out is not None:
        try:
            bench_report.write(report, out)
        except ConfigError as error:
            say(f"not kept yet: {error}")


def _calibrated(
    request: Request, probes: Sequence[Target], runtime: str, threads: int, say: Say
) -> Prediction:
    """From what the probes took, in one process of their own; nothing where that failed."""
    plans = [
        replace(
            _plan(request, target, runtime, threads),
            runs=QUICK_RUNS,
            seconds=QUICK,
            step_seconds=QUICK,
        )
        for target in probes
    ]
    answers = ask(plans, request.limits)
    if why := next((answer.error for answer in answers if answer.error), ""):
        say(f"nothing is predicted for {runtime}, threads {threads}: {why}")
        return Prediction()
    done = [
        (target.submodel, answer.measured)
        for target, answer in zip(probes, answers, strict=True)
        if target.submodel and answer.measured
    ]
    inference = tuple(Timing(submodel, 1, found.latency.p50) for submodel, found in done)
    return Prediction(
        inference,
        tuple(
            Timing(submodel, request.batch, found.step.least)
            for submodel, found in done
            if found.step
        ),
    )


def _plan(request: Request, target: Target, runtime: str, threads: int) -> Plan:
    torch = runtime == "torch"
    return Plan(
        engine="torch" if torch else "onnx",
        file=str(target.files[runtime]),
        provider=request.provider,
        threads=threads,
        submodel=target.submodel if torch else None,
        batch=request.batch if torch else 0,
        seconds=SUSTAINED if request.sustained else SECONDS,
        step_seconds=STEP_SECONDS,
    )


def _row(
    request: Request, target: Target, runtime: str, threads: int, prediction: Prediction
) -> Row:
    plan = _plan(request, target, runtime, threads)
    (answer,) = ask([plan], request.limits)
    row = Row(
        network=target.network,
        submodel=target.name,
        runtime=runtime,
        provider=request.provider,
        threads=threads,
        parameters=target.parameters,
        macs=target.macs,
        training_macs=target.training_macs,
        file_bytes=Path(plan.file).stat().st_size,
        predicted_ms=_ms(prediction.latency(target.submodel)),
        error=answer.error,
    )
    if plan.batch:
        row = replace(
            row,
            batch=plan.batch,
            predicted_step_ms=_ms(prediction.step(target.submodel, plan.batch)),
            predicted_bytes=target.memory,
        )
    return row if answer.measured is None else _filled(row, plan, answer.measured)


def _filled(row: Row, plan: Plan, found: Measured) -> Row:
    """The row with what was measured."""
    took, step = found.latency, found.step
    return replace(
        row,
        load_ms=_ms(found.load),
        runs=took.runs,
        seconds=plan.seconds,
        least_ms=_ms(took.least),
        p50_ms=_ms(took.p50),
        p90_ms=_ms(took.p90),
        p95_ms=_ms(took.p95),
        p99_ms=_ms(took.p99),
        step_least_ms=_ms(step.least if step else None),
        step_median_ms=_ms(step.median if step else None),
        base_bytes=found.memory.base,
        peak_bytes=found.memory.peak,
        training_peak_bytes=found.memory.training,
        joules=found.joules,
        celsius_before=found.before.celsius,
        celsius_after=found.after.celsius,
        mhz_before=found.before.mhz,
        mhz_after=found.after.mhz,
        throttled=found.throttled,
        busy=round(found.busy, 3),
        loaded=found.busy >= BUSY,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 6)


def _print(report: Report, old: Report | None, request: Request, form: str, say: Say) -> bool:
    """Prints the result; whether a row was slower than allowed."""
    found = () if old is None else bench_report.compare(report, old)
    other = () if old is None else bench_report.differences(report, old)
    slow = [
        ratio
        for ratio in found
        if request.fail_above is not None and ratio.worst > request.fail_above
    ]
    screen = table.console(error=form == "json")
    screen.print(table.title(report), style="bold", markup=False, highlight=False)
    screen.print(table.table(report, screen.width))
    for text in table.words(report):
        screen.print(text, markup=False, highlight=False, soft_wrap=True)
    if old is not None:
        screen.print(
            table.ratios(found) if found else "nothing to compare: no row is in both benchmarks"
        )
        for text in other:
            screen.print(
                f"not as in {request.compare}: {text}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    for ratio in slow:
        say(
            f"slower than {request.fail_above:g} times: {ratio.row.submodel} "
            f"{ratio.row.runtime}, {ratio.worst:.2f} times"
        )
    if form == "json":
        compared = (
            {
                "compared": [
                    {"key": ratio.row.key, "p90": ratio.p90, "step": ratio.step} for ratio in found
                ]
            }
            if old is not None
            else {}
        )
        click.echo(msgspec.json.encode({**msgspec.to_builtins(report), **compared}).decode())
    return bool(slow)


def _draw(report: Report, path: Path, say: Say) -> None:
    from edge_agent.bench.plot import draw

    try:
        drawn = draw(report, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
    if not drawn:
        say(f"no picture {path}: no row has both multiply-adds and a latency")
