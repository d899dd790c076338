"""`python -m benchmarks faults`: run each fault scenario several times, at moments drawn from a
printed seed, and check that the fleet recovers and loses no update.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import click

from benchmarks.faults.outcome import Outcome
from benchmarks.faults.parts.broker_kinds import KINDS, describe_broker, find_missing
from benchmarks.faults.results import (
    Summary,
    format_table,
    merge,
    read_campaign,
    summarise,
    write_campaign,
)
from benchmarks.faults.scenarios import (
    SCENARIOS,
    explain_impossible,
    explain_left_out,
    list_scenarios,
)
from benchmarks.faults.trial import run_trial
from benchmarks.output_path_checks import make_folder
from federated.errors import FleetError, Unknown
from federated.runtime.console import FORMAT, Say, print_result, report_errors, speaker

__all__ = ["command", "derive_seed"]

Job = tuple[str, Path, int, str, bool]
"""A run: scenario, folder, seed, kind of broker, and whether its processes are forked."""


def derive_seed(seed: int, name: str, time: int) -> int:
    """Return the seed of one run, which repeats it with --only."""
    return zlib.crc32(f"{seed} {name} {time}".encode())


def run_job(job: Job) -> Outcome:
    """Return the outcome of a run, in a process of its own."""
    name, folder, seed, kind, forked = job
    return run_trial(name, SCENARIOS[name], folder, seed, kind, forked=forked)


def choose_scenarios(names: Sequence[str], kind: str) -> list[str]:
    """Return the given or all scenarios for this kind of broker. Unknown: no such scenario.
    FleetError: the broker is not installed.
    """
    if missing := find_missing(kind):
        raise FleetError(f"--broker {kind}: {missing} not found: install it")
    known = list_scenarios(kind)
    for name in names:
        if why := explain_left_out(name, kind):
            raise FleetError(f"--scenario '{name}': not tried on --broker {kind}: {why}")
        if name not in known:
            raise Unknown("scenario", name, known)
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
@click.option(
    "--forked",
    is_flag=True,
    help="fork coordinators and agents from a process that has imported PyTorch: faster, but the "
    "seconds to recover lack those of the imports",
)
@click.option(
    "--save",
    is_flag=True,
    help="replace these scenarios in benchmarks/results/faults, from which python -m benchmarks "
    "docs makes a table",
)
@click.option("--saved", is_flag=True, help="run nothing; show the saved results of this broker")
@FORMAT
def command(
    names: tuple[str, ...],
    times: int,
    seed: int,
    only: int | None,
    kind: str,
    workers: int,
    keep: Path | None,
    forked: bool,
    save: bool,
    saved: bool,
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
        if saved:
            print_result(
                read_campaign(kind), form, lambda found: "\n".join(format_table(found.rows))
            )
            return
        wanted = choose_scenarios(names, kind)
        folder = keep or Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="espalier-faults-", ignore_cleanup_errors=True)
            )
        )
        make_folder(folder)
        say = speaker(form)
        say(f"{describe_broker(kind)}, seed {seed}")
        chosen = [name for name in wanted if not explain_impossible(name)]
        for name in (name for name in wanted if name not in chosen):
            say(f"{name}: skipped: {explain_impossible(name)}")
        drawn = {name: [derive_seed(seed, name, at) for at in range(times)] for name in chosen}
        seeds = drawn if only is None else {name: [only] for name in chosen}
        found = list[Summary]()
        outcomes = run_jobs(list_jobs(seeds, folder, kind, forked), workers, say)
        for name, each in seeds.items():
            found.append(summarise(name, list(islice(outcomes, len(each)))))
            if save:  # a campaign takes long, and may be interrupted
                write_campaign(merge(kind, describe_broker(kind), found[-1:], forked=forked))
        for line in format_table(found):
            say(line)
        if form == "json":
            rows = [asdict(each) for each in found]
            click.echo(json.dumps({"seed": seed, "broker": kind, "scenarios": rows}))
        if not all(map(has_passed, found)):
            sys.exit(1)


def list_jobs(
    seeds: Mapping[str, Sequence[int]], folder: Path, kind: str, forked: bool
) -> list[Job]:
    """Return the runs with these seeds of each scenario."""
    return [
        (name, folder / f"{place}-{number}", seed, kind, forked)
        for place, (name, drawn) in enumerate(seeds.items())
        for number, seed in enumerate(drawn)
    ]


def run_jobs(jobs: Sequence[Job], workers: int, say: Say) -> Iterator[Outcome]:
    """Yield the outcomes of these runs in order. `workers` of them take place at a time."""
    with ProcessPoolExecutor(workers) as pool:
        for number, outcome in enumerate(pool.map(run_job, jobs), 1):
            fault = f": {outcome.why}" if outcome.why else ""
            say(
                f"{number:3} of {len(jobs)}  {outcome.scenario}, "
                f"{outcome.seconds:.0f} s, recovered in {outcome.recovery}{fault}"
            )
            yield outcome


def has_passed(found: Summary) -> bool:
    """Return True if all runs of a scenario survived, and nothing was lost or counted twice."""
    wrong = found.lost_updates or found.double_folded
    return not wrong and min(found.equal, found.survived) == found.runs
