"""`edge-agent profile`: measure the device, print each result at once and, with `--out`, write all
results to a JSON file. Does not import torch.

A description of the hardware takes no time; each family of networks takes seconds, unless its
timings are cached.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from edge_agent.device.board import is_metered, read_processor_name
from edge_agent.device.heat_and_load import BUSY, Heat, measure_load, read_heat
from edge_agent.device.measurement_cache import read_versions
from edge_agent.join.trainer_choice import GAIN
from edge_agent.join.training_process_control import Calibrated, Compared, Job, Order, Worker
from federated.defaults import MEMORY_FRACTION
from federated.device.profile_file import (
    FORMAT,
    RUNTIMES,
    Calibration,
    Circumstances,
    Sheet,
    write,
)
from federated.errors import (
    ConfigError,
    EspalierError,
    ExportError,
    MissingExtra,
    Unknown,
    explain_os_errors,
)
from federated.runtime import atomic_files
from federated.runtime.console import Say, handle_sigterm, show_progress
from federated.runtime.unit_formatting import format_count
from federated.task import Profile
from federated.wire import topics
from federated.wire.links.catalogue import open_link

__all__ = ["FAMILIES", "ProfileRequest", "profile_device"]


# the default: a network of plain convolutions, one of grouped convolutions, and one without any
FAMILIES = ("preresnet", "mobilenet", "vit")
OFFLINE = "profile"  # placeholder for the run's name in the topic of the link's probe


@dataclass(frozen=True)
class ProfileRequest:
    """Options of the command.

    models: families, or families with a preset; empty for FAMILIES.
    runtimes: empty for all installed ones.
    batch: examples of a training step.
    threads: 0 finds the best number.
    broker: measure the uplink to it; empty for none.
    fresh: ignore cached timings.
    compare: also compare ONNX Runtime with PyTorch in training.
    """

    models: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    batch: int = 32
    threads: int = 0
    broker: str = ""
    fresh: bool = False
    compare: bool = False


def profile_device(job: Job, request: ProfileRequest, out: Path | None, form: str, say: Say) -> str:
    """Measure the device and write the sheet to `out`. Return it as JSON if `form` is json. Raises
    as `measure_sheet`, and ConfigError for an unwritable file.
    """
    if unknown := [name for name in request.runtimes if name not in RUNTIMES]:
        raise Unknown("runtime", unknown[0], RUNTIMES)
    if out is not None:
        with explain_os_errors(ConfigError, f"--out {out}: cannot be written"):
            atomic_files.check_writable(out)
    sheet = measure_sheet(job, request, say)
    if out is not None:
        write(sheet, out)
        say(f"wrote {out}: coordinator assign --profile {out} says what this device would train")
    return encode_sheet(sheet) if form == "json" else ""


def encode_sheet(sheet: Sheet) -> str:
    """Return the sheet as one line of JSON, as in its file."""
    return msgspec.json.encode({"format": FORMAT, **msgspec.to_builtins(sheet)}).decode()


def measure_sheet(job: Job, request: ProfileRequest, say: Say) -> Sheet:
    """Measure and calibrate the device. Raises MissingExtra without PyTorch, ConfigError if no
    calibration is possible, LinkError.
    """
    heat = read_heat()
    with handle_sigterm(), contextlib.closing(Worker(job)) as worker:
        _load(worker)
        worker.check_models(request.models)
        profile = worker.describe()
        for line in describe_device(profile, heat, worker.limits):
            say(line)
        chunk, uplink = _measure_uplink(job, request.broker, say)
        calibrations, conditions = _calibrate_all(worker, request, say)
        if request.compare:
            conditions += _compare_trainers(worker, request, say)
    circumstances = _merge(conditions)
    if circumstances.throttled:
        say("the device throttled while it was measured: timings of a hot device are not cached")
    if circumstances.busy >= BUSY:
        say(
            f"other processes used up to {circumstances.busy:.0%} of the processors: measure again "
            "on an idle device (disturbed timings are not cached)"
        )
    return Sheet(
        replace(profile, uplink=uplink, chunk=chunk),
        calibrations,
        circumstances,
        read_versions(),
        job.limits.cpus,
        job.limits.memory,
        datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _load(worker: Worker) -> None:
    try:
        with show_progress("loading the data", of_bytes=True) as show:
            worker.load(show)
    except MissingExtra as error:
        raise MissingExtra("edge-agent profile", error.extra, error.package) from None


def describe_device(profile: Profile, heat: Heat, limits: str) -> list[str]:
    """Describe a device in lines, before anything is timed."""
    board = profile.board
    heat_parts = [f"{heat.celsius:.0f} C"] if heat.celsius is not None else []
    heat_parts += [f"{heat.mhz:.0f} MHz"] if heat.mhz is not None else []
    heat_parts += [
        {None: "throttling unknown", False: "not throttled", True: "throttled"}[heat.throttled]
    ]
    if heat.ever and not heat.throttled:
        heat_parts += ["has throttled since start-up"]
    metered = {None: "unknown whether metered", False: "unmetered", True: "metered"}[is_metered()]
    load = measure_load()
    used = "load unknown" if load is None else f"other processes use {load:.0%}"
    gpu = f"{board.gpu}{' (shares the memory)' if board.shared else ''}" if board.gpu else "none"
    return [
        f"board      {board.model or 'unknown'} ({board.kind}), {profile.system}",
        f"processor  {read_processor_name()}: {profile.cpus:g} usable; limits: {limits}; {used}",
        f"memory     {profile.memory / 1e6:.0f} MB free; by default, training may use "
        f"{MEMORY_FRACTION:.0%} of it (assign.memory)",
        f"gpu        {gpu}",
        f"heat       {', '.join(heat_parts)}",
        f"power      {board.power or 'unknown'}",
        f"network    {metered}",
    ]


def _measure_uplink(job: Job, broker: str, say: Say) -> tuple[int, float]:
    """Return the largest payload and the bytes per second to a broker; zeros without one."""
    if not broker:
        say("uplink     not measured: set --broker")
        return 0, 0.0
    client = f"profile-{job.name[:40]}-{secrets.token_hex(3)}"
    with contextlib.closing(open_link(broker, client)) as link:
        chunk, uplink = link.probe(topics.probe(OFFLINE, job.name))
    say(f"uplink     {uplink / 1e6:.1f} MB/s, payloads of {chunk} bytes")
    return chunk, uplink


def _calibrate_all(
    worker: Worker, request: ProfileRequest, say: Say
) -> tuple[tuple[Calibration, ...], list[Circumstances]]:
    """Calibrate every family with every runtime. A default family that does not fit the data and a
    default runtime that is not installed are skipped.
    """
    found, errors = list[Calibrated](), list[EspalierError]()
    pairs = itertools.product(request.models or FAMILIES, request.runtimes or RUNTIMES)
    for model, runtime in pairs:
        order = Order(model, runtime, request.batch, request.threads, request.fresh)
        try:
            with show_progress(f"timing {model} with {runtime}"):
                found.append(_calibrate(worker, order))
        except EspalierError as error:
            named = request.runtimes if isinstance(error, MissingExtra) else request.models
            if named or not worker.alive:
                raise
            say(f"{model}, {runtime}: skipped: {error}")
            errors.append(error)
        else:
            say(_describe_calibration(order, found[-1]))
    if not found:
        raise ConfigError(f"no calibration possible: {errors[0]}")
    return tuple(one.calibration for one in found), [one.circumstances for one in found]


def _calibrate(worker: Worker, order: Order) -> Calibrated:
    """Calibrate in the worker. Missing graphs are exported here, outside the worker's limits:
    exporting is not part of the measurement.
    """
    found = worker.calibrate(order)
    if not found.missing:
        return found
    from edge_agent.join.speed_calibration import export_graphs

    with tempfile.TemporaryDirectory(prefix="espalier-") as folder:
        files = export_graphs(found.missing, found.dtype, Path(folder))
        return worker.calibrate(replace(order, files=files))


def _compare_trainers(worker: Worker, request: ProfileRequest, say: Say) -> list[Circumstances]:
    """Compare the trainers for each network, and say which one is faster. Steps are exported here,
    like graphs. A network whose step cannot be exported is skipped. Raises MissingExtra,
    ConfigError.
    """
    from edge_agent.join.speed_calibration import export_step

    conditions = list[Circumstances]()
    for model in request.models or FAMILIES:
        order = Order(model, "onnx", request.batch, request.threads, request.fresh)
        try:
            with (
                show_progress(f"comparing trainers for {model}"),
                tempfile.TemporaryDirectory(prefix="espalier-") as folder,
            ):
                found = worker.compare_trainers(order)
                if not found.ratio:
                    files = export_step(found.submodel, order.batch, Path(folder))
                    found = worker.compare_trainers(replace(order, files=files))
        except ExportError as error:
            say(f"{model}: trainers not compared: {error}")
            continue
        conditions.append(found.circumstances)
        say(_describe_comparison(model, found))
    return conditions


def _describe_comparison(model: str, found: Compared) -> str:
    chosen = "onnx" if found.ratio < GAIN else "pytorch"
    use = f"join with --trainer {chosen}" if ":" in model else f"--trainer auto uses {chosen}"
    return (
        f"{model}: a training step takes {found.ratio:.2f} times as long with ONNX Runtime as with "
        f"PyTorch: {use}"
    )


def _describe_calibration(order: Order, found: Calibrated) -> str:
    calibration = found.calibration
    work = f"training step of {order.batch}" if calibration.work == "train" else "prediction"
    times = ", ".join(
        f"{timing.submodel.name} {timing.seconds * 1000:.3g} ms" for timing in calibration.timings
    )
    threads = format_count(calibration.threads, "thread")
    cached = "" if found.taken else " (cached)"
    return f"{order.model}, {order.runtime}, {threads}: {work}: {times}{cached}"


def _merge(conditions: Sequence[Circumstances]) -> Circumstances:
    """Return the last temperature and clock, and the worst throttling and load."""
    last = conditions[-1]
    throttled = [each.throttled for each in conditions if each.throttled is not None]
    return Circumstances(
        last.celsius,
        last.mhz,
        any(throttled) if throttled else None,
        max(each.busy for each in conditions),
    )
