"""`python -m benchmarks faults`: run each fault scenario several times, at moments drawn from a
printed seed, and check that the fleet recovers and loses no update.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.faults.broker_kinds import KINDS, find_missing
from benchmarks.faults.scenarios import SCENARIOS, explain_impossible, list_scenarios
from benchmarks.faults.trial import Outcome, find_median, run_trial
from benchmarks.output_path_checks import make_folder
from federated.errors import FleetError, Unknown
from federated.runtime.console import FORMAT, report_errors, speaker

__all__ = ["Summary", "command", "summarise"]


@dataclass(frozen=True)
class Summary:
    """Results of a scenario.

    runs: number of runs
    injected: faults
    survived: runs with a fault that finished
    lost_updates, double_folded: over all runs, including those that did not recover
    equal: runs with the model of an undisturbed run
    recovery_s: median seconds from a fault to the next progress
    longest_s: longest such time
    why: failure and seed of each run that failed
    """

    scenario: str
    runs: int
    injected: int
    survived: int
    lost_updates: int
    double_folded: int
    equal: int
    recovery_s: float
    longest_s: float
    why: tuple[str, ...] = ()


def summarise(name: str, outcomes: Sequence[Outcome]) -> Summary:
    """Return the summary of a scenario's runs."""
    waits = [seconds for outcome in outcomes for seconds in outcome.recovery]
    return Summary(
        name,
        len(outcomes),
        sum(outcome.injected for outcome in outcomes),
        sum(outcome.survived for outcome in outcomes),
        sum(outcome.lost for outcome in outcomes),
        sum(outcome.doubled for outcome in outcomes),
        sum(outcome.equal for outcome in outcomes),
        round(find_median(waits), 2),
        round(max(waits, default=0.0), 2),
        tuple(f"seed {outcome.seed}: {outcome.why}" for outcome in outcomes if outcome.why),
    )


def derive_seed(seed: int, name: str, time: int) -> int:
    """Return the seed of one run, which repeats it with --only."""
    return zlib.crc32(f"{seed} {name} {time}".encode())


def run_job(job: tuple[str, Path, int, str]) -> Outcome:
    """Return the outcome of a run, in a process of its own."""
    name, folder, seed, kind = job
    return run_trial(name, SCENARIOS[name], folder, seed, kind)


def format_table(found: Iterable[Summary]) -> list[str]:
    """Return the table for the terminal."""
    head = (
        f"{'scenario':30}{'runs':>6}{'injected':>10}{'survived':>10}{'lost':>6}"
        f"{'doubled':>9}{'equal':>7}{'recovery':>10}{'longest':>9}"
    )
    body = [
        f"{s.scenario:30}{s.runs:6}{s.injected:10}{s.survived:10}"
        f"{s.lost_updates:6}{s.double_folded:9}{s.equal:7}"
        f"{s.recovery_s:8.1f} s{s.longest_s:7.1f} s"
        for s in found
    ]
    return [head, *body, *(f"{s.scenario}: {why}" for s in found for why in s.why)]


def choose_scenarios(names: Sequence[str], kind: str) -> list[str]:
    """Return the given or all scenarios for this kind of broker. Unknown: no such scenario.
    FleetError: the broker is not installed.
    """
    if missing := find_missing(kind):
        raise FleetError(f"--broker {kind}: {missing} not found: install it")
    known = list_scenarios(kind)
    if unknown := [name for name in names if name not in known]:
        raise Unknown("scenario", unknown[0], known)
    return list(names) or known


@click.command("faults")
@click.option(
    "--scenario",
    "names",
    multiple=True,
    metavar="NAME",
    help="run only this scenario; may be repeated",
)
@click.option(
    "--times",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="number of runs of each scenario",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="seed of the times of the faults",
)
@click.option("--only", type=int, metavar="SEED", help="repeat the run that had this seed")
@click.option(
    "--broker",
    "kind",
    type=click.Choice(list(KINDS)),
    default="mosquitto",
    show_default=True,
    help="broker to start",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="number of concurrent runs",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="keep the runs and the logs in this folder",
)
@FORMAT
def command(
    names: tuple[str, ...],
    times: int,
    seed: int,
    only: int | None,
    kind: str,
    workers: int,
    keep: Path | None,
    form: str,
) -> None:
    """Inject faults into a fleet, and check that it recovers.

    Faults hit the coordinator, the broker, agents, links and disks. Count updates that were lost or
    counted twice, and measure the time to recover.
    """
    with (
        report_errors("python -m benchmarks faults", "coordinator"),
        ExitStack() as stack,
    ):
        wanted = choose_scenarios(names, kind)
        folder = keep or Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="espalier-faults-", ignore_cleanup_errors=True)
            )
        )
        make_folder(folder)
        say = speaker(form)
        say(f"seed {seed}")
        chosen = [name for name in wanted if not explain_impossible(name)]
        for name in (name for name in wanted if name not in chosen):
            say(f"{name}: skipped: {explain_impossible(name)}")
        jobs = [
            (
                name,
                folder / f"{place}-{number}",
                derive_seed(seed, name, number) if only is None else only,
                kind,
            )
            for place, name in enumerate(chosen)
            for number in range(times if only is None else 1)
        ]
        outcomes = list[Outcome]()
        with ProcessPoolExecutor(workers) as pool:
            for outcome in pool.map(run_job, jobs):
                outcomes.append(outcome)
                fault = f": {outcome.why}" if outcome.why else ""
                say(
                    f"{len(outcomes):3} of {len(jobs)}  {outcome.scenario}, "
                    f"{outcome.seconds:.0f} s, recovered in {outcome.recovery}{fault}"
                )
        found = [summarise(name, [o for o in outcomes if o.scenario == name]) for name in chosen]
        for line in format_table(found):
            say(line)
        if form == "json":
            rows = [asdict(each) for each in found]
            click.echo(json.dumps({"seed": seed, "broker": kind, "scenarios": rows}))
        if any(
            s.lost_updates or s.double_folded or min(s.equal, s.survived) < s.runs for s in found
        ):
            sys.exit(1)
