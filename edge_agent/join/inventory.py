"""`edge-agent profile`: everything that a device measures of itself, told as it is found, and kept
as one sheet. No torch at import.

What it is and what it may use take no time; each family of networks takes seconds, the first time.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.device.board import processor_name
from edge_agent.device.heat import Heat, read_heat
from edge_agent.device.load import BUSY, measure_load
from edge_agent.device.measurement_cache import versions
from edge_agent.device.power import is_metered
from edge_agent.join.worker import Job, Worker
from federated.device.profile_file import FORMAT, RUNTIMES, Calibration, Circumstances, Sheet, write
from federated.errors import ConfigError, EspalierError, MissingExtra, Unknown
from federated.runtime.console import Say, terminable
from federated.task import Board, Card, Profile
from federated.wire import topics
from federated.wire.links.catalogue import open_link

__all__ = ["FAMILIES", "Wanted", "as_json", "command", "take"]


# where nobody names others: plain convolutions, grouped ones, and none
FAMILIES = ("preresnet", "mobilenet", "vit")
OFFLINE = "profile"  # stands for a run in the topic of the probe of the link


@dataclass(frozen=True)
class Wanted:
    """What to measure. models: families, with presets where one is meant; empty: the usual ones.
    runtimes: empty: all that are installed.

    threads: 0 finds the best number. broker: to measure the way to, empty for none. fresh: whatever
    is known.
    """

    models: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    batch: int = 32
    threads: int = 0
    broker: str = ""
    fresh: bool = False


def command(job: Job, wanted: Wanted, out: Path | None, form: str, say: Say) -> str:
    """What `edge-agent profile` prints last: the sheet as JSON, or where it lies. Raises as `take`
    does, and ConfigError for an unwritable file.
    """
    if unknown := [name for name in wanted.runtimes if name not in RUNTIMES]:
        raise Unknown("runtime", unknown[0], RUNTIMES)
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    sheet = take(job, wanted, say)
    if out is not None:
        write(sheet, out)
        say(f"wrote {out}: coordinator assign --profile {out} says what this device would train")
    return as_json(sheet) if form == "json" else ""


def as_json(sheet: Sheet) -> str:
    """The sheet on one line, as its file holds it."""
    return msgspec.json.encode({"format": FORMAT, **msgspec.to_builtins(sheet)}).decode()


def take(job: Job, wanted: Wanted, say: Say) -> Sheet:
    """Looks at the device, and calibrates it. Raises MissingExtra without PyTorch, ConfigError
    where no calibration is possible, LinkError.
    """
    heat = read_heat()
    with terminable(), contextlib.closing(Worker(job)) as worker:
        card = _loaded(worker)
        seen = worker.look()
        for line in described(seen, heat, worker.limits):
            say(line)
        chunk, uplink = _uplink(job, wanted.broker, say)
        calibrations, circumstances = _calibrations(worker, card, wanted, say)
    if circumstances.throttled:
        say(
            "the device throttled meanwhile: these timings are those of a hot device, "
            "and are not kept"
        )
    if circumstances.busy >= BUSY:
        say(
            f"others used up to {circumstances.busy:.0%} of the processors: measure "
            "again on an idle device (what they disturbed is not kept)"
        )
    facts = {
        **seen,
        "agent": job.name,
        "uplink": uplink,
        "chunk": chunk,
        "data": asdict(card),
        "timings": (),
    }
    profile = msgspec.convert(facts, Profile)
    taken = datetime.now(UTC).isoformat(timespec="seconds")
    return Sheet(
        profile, calibrations, circumstances, versions(), job.limits.cpus, job.limits.memory, taken
    )


def _loaded(worker: Worker) -> Card:
    try:
        return worker.load()
    except MissingExtra as error:
        raise MissingExtra("edge-agent profile", error.extra, error.package) from None


def described(seen: dict[str, Any], heat: Heat, limits: str) -> list[str]:
    """What there is to say of a device before anything is timed."""
    board = msgspec.convert(seen["board"], Board)
    warm = [f"{heat.celsius:.0f} C"] if heat.celsius is not None else []
    warm += [f"{heat.mhz:.0f} MHz"] if heat.mhz is not None else []
    held = {None: "throttling not readable", False: "not throttled", True: "throttled"}[
        heat.throttled
    ]
    earlier = ", was throttled since it started" if heat.ever and not heat.throttled else ""
    metered = {None: "not known to be metered or not", False: "unmetered", True: "metered"}[
        is_metered()
    ]
    used = (
        "not known what others use"
        if (share := measure_load()) is None
        else f"others use {share:.0%}"
    )
    gpu = f"{board.gpu}{' (shares the memory)' if board.shared else ''}" if board.gpu else "none"
    return [
        f"board      {board.model or 'a machine without a name'} ({board.kind}), {seen['system']}",
        f"processor  {processor_name()}: {seen['cpus']:g} to use; limits: {limits}; {used}",
        f"memory     {seen['memory'] / 1e6:.0f} MB to train in",
        f"gpu        {gpu}",
        f"heat       {', '.join([*warm, held])}{earlier}",
        f"power      {board.power or 'not said'}",
        f"network    {metered}",
    ]


def _uplink(job: Job, broker: str, say: Say) -> tuple[int, float]:
    """Largest payload and bytes per second to a broker; zeros without one."""
    if not broker:
        say("uplink     not measured: name a --broker")
        return 0, 0.0
    link = open_link(broker, f"profile-{job.name[:40]}-{secrets.token_hex(3)}")
    try:
        chunk, uplink = link.probe(topics.probe(OFFLINE, job.name))
    finally:
        link.close()
    say(f"uplink     {uplink / 1e6:.1f} MB/s, payloads of {chunk} bytes")
    return chunk, uplink


def _calibrations(
    worker: Worker, card: Card, wanted: Wanted, say: Say
) -> tuple[tuple[Calibration, ...], Circumstances]:
    """All that are possible. Families that nobody named are left out where they do not fit the
    data; the runtime for graphs, where it is missing.
    """
    found, conditions, refused = list[Calibration](), list[Circumstances](), list[EspalierError]()
    for model in wanted.models or FAMILIES:
        for runtime in wanted.runtimes or RUNTIMES:
            order = {
                "model": model,
                "runtime": runtime,
                "batch": wanted.batch,
                "threads": wanted.threads,
                "fresh": wanted.fresh,
            }
            try:
                answer = _calibrate(worker, order)
            except EspalierError as error:
                asked = wanted.runtimes if isinstance(error, MissingExtra) else wanted.models
                if asked or not worker.alive:
                    raise
                say(f"{model}, {runtime}: left out: {error}")
                refused.append(error)
                continue
            calibration, circumstances = _calibration(answer, runtime)
            say(_told(model, calibration, answer["taken"], wanted.batch))
            found.append(calibration)
            conditions.append(circumstances)
    if not found:
        raise ConfigError(f"no calibration possible: {refused[0]}")
    return tuple(found), _together(conditions)


def _calibrate(worker: Worker, order: dict[str, Any]) -> dict[str, Any]:
    """What the worker measured. Graphs that it lacks are exported here, outside its limits: they
    are no part of what is measured.
    """
    answer = worker.calibrate(order)
    if not answer["missing"]:
        return answer
    from edge_agent.join.calibration import exported
    from models.submodel import Submodel

    with tempfile.TemporaryDirectory(prefix="espalier-") as folder:
        files = exported(
            [msgspec.convert(submodel, Submodel) for submodel in answer["missing"]],
            answer["dtype"],
            Path(folder),
        )
        return worker.calibrate({**order, "files": files})


def _calibration(answer: dict[str, Any], runtime: str) -> tuple[Calibration, Circumstances]:
    work = "train" if runtime == "torch" else "infer"
    facts = {
        "family": answer["family"],
        "runtime": runtime,
        "work": work,
        "threads": answer["threads"],
        "timings": answer["timings"],
    }
    return msgspec.convert(facts, Calibration), msgspec.convert(
        answer["circumstances"], Circumstances
    )


def _told(model: str, calibration: Calibration, taken: int, batch: int) -> str:
    what = f"a training step of {batch}" if calibration.work == "train" else "an answer"
    times = ", ".join(
        f"{timing.submodel.name} {timing.seconds * 1000:.3g} ms" for timing in calibration.timings
    )
    threads = f"{calibration.threads} thread{'s' if calibration.threads > 1 else ''}"
    return (
        f"{model}, {calibration.runtime}, {threads}: {what}: {times}{'' if taken else ' (known)'}"
    )


def _together(conditions: Sequence[Circumstances]) -> Circumstances:
    """The last readings, and the worst of what happened."""
    last = conditions[-1]
    said = [each.throttled for each in conditions if each.throttled is not None]
    return Circumstances(
        last.celsius, last.mhz, any(said) if said else None, max(each.busy for each in conditions)
    )
