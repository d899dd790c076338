"""`python -m benchmarks floods`: floods one part of the system from outside or by an agent, and
measures how round times, honest enrolments and memory suffer.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
import msgspec
import numpy as np

from benchmarks.floods.mass_revocation import Revocations, measure_revocations
from benchmarks.floods.trial import FLOODS, Subject, Watch, measure
from benchmarks.inference import build_random
from benchmarks.output_path_checks import check_log
from export import onnx_export
from federated.errors import ConfigError, FleetError, Unknown, UsageError
from federated.runtime.console import FORMAT, print_result, report_errors, speaker
from models.named_network import network
from models.submodel_building import full

__all__ = ["Row", "Use", "command", "judge"]

MODELS = ("mobilenet-v2-cifar", "preresnet")  # 9.1 MB and 0.05 MB
RATIO = 1.5  # most seconds of a flooded round, relative to an undisturbed one
ENROLLED = 5.0  # most seconds of an honest enrolment
ADDED = 3  # most memory that a flood may add, in models
BACK = 1.1  # most memory after a flood, relative to the memory before it


class Use(msgspec.Struct, frozen=True):
    """Resident memory of a process in MB.

    base: median before the flood
    highest: before the flood
    peak: during the flood
    after: median after the flood
    limit: `base` and three models
    back: `after` relative to `base`
    met: True if neither `peak` nor `back` exceeds its limit
    """

    base: float
    highest: float
    peak: float
    after: float
    limit: float
    back: float
    met: bool


class Row(msgspec.Struct, frozen=True):
    """Effect of a flood. Times are medians in seconds.

    flood: name
    firewall: True if the firewall rule limited connections to the broker
    count: connections, questions or messages of the attacker
    per_s: the same per second
    rounds: number of undisturbed rounds, and of flooded ones
    undisturbed_s, flooded_s: of a round
    ratio: `flooded_s` relative to `undisturbed_s`
    enrolments: honest ones during the flood
    failed: those that failed
    enrolment_undisturbed_s, enrolment_s, enrolment_worst_s: of an honest enrolment
    answer_s, answer_worst_s: of an honest question to the inference server, during the flood
    unanswered: such questions without an answer
    model_mb: size of the network
    coordinator, inference: memory
    met: True if all goals are met
    """

    flood: str
    firewall: bool
    count: int
    per_s: float
    rounds: tuple[int, int]
    undisturbed_s: float
    flooded_s: float
    ratio: float
    enrolments: int
    failed: int
    enrolment_undisturbed_s: float
    enrolment_s: float
    enrolment_worst_s: float
    answer_s: float
    answer_worst_s: float
    unanswered: int
    model_mb: float
    coordinator: Use
    inference: Use
    met: bool


def judge_memory(watch: Watch, process: str, model: int) -> Use:
    """Compare the memory of a process with its limits. model: bytes."""
    before, during, after = (
        arm.memory[process] for arm in (watch.before, watch.during, watch.after)
    )
    base, peak, later = (
        statistics.median(before),
        max(during),
        statistics.median(after[len(after) // 2 :]),
    )
    limit, back = base + ADDED * model / 1e6, later / base
    return Use(
        round(base, 1),
        round(max(before), 1),
        round(peak, 1),
        round(later, 1),
        round(limit, 1),
        round(back, 3),
        met=peak <= limit and back <= BACK,
    )


def judge(flood: str, watch: Watch, model: int, *, firewall: bool) -> Row:
    """Compare the measurements of a flood with the goals. model: bytes."""
    calm, flooded = statistics.median(watch.calm), statistics.median(watch.during.rounds)
    during = watch.during
    uses = [judge_memory(watch, name, model) for name in ("coordinator", "inference")]
    met = (
        flooded <= RATIO * calm
        and not during.failed
        and max(during.enrolments) <= ENROLLED
        and all(use.met for use in uses)
    )
    enrolment, answer = median_and_worst(during.enrolments), median_and_worst(during.answers)
    return Row(
        flood,
        firewall,
        watch.count,
        round(watch.count / watch.seconds, 1),
        (len(watch.calm), len(during.rounds)),
        round(calm, 3),
        round(flooded, 3),
        round(flooded / calm, 2),
        len(during.enrolments),
        during.failed,
        round(statistics.median([*watch.before.enrolments, *watch.after.enrolments]), 3),
        *enrolment,
        *answer,
        during.unanswered,
        round(model / 1e6, 2),
        uses[0],
        uses[1],
        met,
    )


def median_and_worst(seconds: Sequence[float]) -> tuple[float, float]:
    return round(statistics.median(seconds), 3), round(max(seconds), 3)


def export_subject(model: str, folder: Path) -> Subject:
    """Export a network for the inference server. Return it with the settings of its run."""
    made = network(model, (1, 8, 8), 10)
    whole = full(made)
    net = build_random(whole)
    examples = np.zeros((2, 1, 8, 8), np.uint8)
    origin = {"run": "floods", "round": 0, "submodel": whole.name}
    graph = onnx_export.export(net, made, examples, folder / "model.onnx", origin)
    size = sum(value.numel() * value.element_size() for value in net.state_dict().values())
    question = msgspec.json.encode({"inputs": examples[:1].tolist()})
    settings: dict[str, object] = {
        "model.name": model,
        "method.depths": [[len(section) for section in whole.mask]],
        "assign.submodels": {"*": whole.name},
    }
    return Subject(settings, graph, question, size)


def lines(rows: Sequence[Row], revoked: Revocations | None) -> list[str]:
    """Return the table for the terminal."""
    found = [
        f"{'flood':34}{'per s':>9}{'round s':>9}{'flooded':>9}{'ratio':>7}{'enrol s':>9}"
        f"{'worst':>8}{'coordinator MB':>24}{'inference MB':>24}"
    ]
    for row in rows:
        memory = "".join(
            f"{f'{use.base:.0f} {use.peak:.0f} {use.after:.0f} <= {use.limit:.0f}':>24}"
            for use in (row.coordinator, row.inference)
        )
        found.append(
            f"{row.flood:34}{row.per_s:9.0f}{row.undisturbed_s:9.3f}{row.flooded_s:9.3f}"
            f"{row.ratio:7.2f}{row.enrolment_s:9.3f}{row.enrolment_worst_s:8.3f}{memory}"
            f"{'' if row.met else '  missed'}"
        )
    if revoked is not None:
        found += [f"{name}: {value}" for name, value in asdict(revoked).items()]
    return found if rows else found[1:]


def choose(names: Sequence[str]) -> list[str]:
    """Return the given or all floods. Unknown: no such flood."""
    if unknown := [name for name in names if name not in FLOODS]:
        raise Unknown("flood", unknown[0], list(FLOODS))
    return list(names) or list(FLOODS)


def find_processors() -> tuple[int, int]:
    """Return one processor for the system and one for the attacker. UsageError: only one."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise UsageError("floods need two processors: one for the system, one for the attacker")
    return usable[0], usable[-1]


def read_log(log: Path | None) -> list[Row]:
    """Return the rows of earlier calls. Raises ConfigError."""
    check_log(log)
    if log is None or not log.exists():
        return []
    try:
        return [msgspec.json.decode(line, type=Row) for line in log.read_bytes().splitlines()]
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"--log {log}: expected a file that this benchmark wrote: {error}; choose another file"
        ) from error


@click.command("floods")
@click.option(
    "--flood", "names", multiple=True, metavar="NAME", help="run only this flood; may be repeated"
)
@click.option(
    "--times",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="rounds and enrolments to measure, during the flood and as many without it",
)
@click.option(
    "--model",
    type=click.Choice(MODELS),
    default=MODELS[0],
    show_default=True,
    help="network of the run and of the inference server",
)
@click.option(
    "--revocations",
    type=click.IntRange(min=1),
    metavar="N",
    help="run no flood: revoke N agents that are connected to mosquitto",
)
@click.option(
    "--firewall",
    is_flag=True,
    help="load deploy/mosquitto/connection-limit.nft for the broker (root, nftables)",
)
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="save the results in this file, and resume from it",
)
@FORMAT
def command(
    names: tuple[str, ...],
    times: int,
    model: str,
    revocations: int | None,
    firewall: bool,
    log: Path | None,
    form: str,
) -> None:
    """Flood a run with requests, and measure how it slows down.

    The attacker has a processor of its own. Measure the times of rounds and of honest enrolments,
    and the memory.
    """
    with (
        report_errors("python -m benchmarks floods", "coordinator"),
        tempfile.TemporaryDirectory(
            prefix="espalier-floods-", ignore_cleanup_errors=True
        ) as folder,
    ):
        revoked = None
        rows, unfinished = list[Row](), dict[str, str]()
        if revocations is not None:
            revoked = measure_revocations(revocations, Path(folder))
        else:
            how = How(model, times, firewall)
            rows, unfinished = run_all(choose(names), how, log, Path(folder), form)
        found = {
            "floods": [msgspec.to_builtins(row) for row in rows],
            "unfinished": unfinished,
            "revocations": None if revoked is None else asdict(revoked),
        }
        print_result(found, form, lambda _: "\n".join(lines(rows, revoked)))
        if unfinished or not all(row.met for row in rows) or (revoked and not revoked.met):
            sys.exit(1)


class How(msgspec.Struct, frozen=True):
    """How to measure floods.

    model: network of the run and of the inference server
    times: rounds and enrolments to measure
    firewall: True if the firewall rule limits connections to the broker
    """

    model: str
    times: int
    firewall: bool


def run_all(
    chosen: Sequence[str], how: How, log: Path | None, folder: Path, form: str
) -> tuple[list[Row], dict[str, str]]:
    """Return the row of each flood, from the log if it is there, and the reason for each flood in
    which no round or no enrolment finished.
    """
    say, processors = speaker(form), find_processors()
    rows = {row.flood: row for row in read_log(log) if row.firewall == how.firewall}
    unfinished = dict[str, str]()
    subject = export_subject(how.model, folder)
    for at, name in enumerate(name for name in chosen if name not in rows):
        try:
            watch = measure(
                name, subject, how.times, processors, folder / str(at), firewall=how.firewall
            )
        except FleetError as error:
            unfinished[name] = str(error)
            say(f"{name}: {error}")
            continue
        rows[name] = judge(name, watch, subject.bytes, firewall=how.firewall)
        if log is not None:
            with log.open("ab") as file:
                file.write(msgspec.json.encode(rows[name]) + b"\n")
        say(lines([rows[name]], None)[1])
    return [rows[name] for name in chosen if name in rows], unfinished
