"""`python -m benchmarks attacks`: starts runs under every attack and fault, alone and in random
pairs, and counts lost or doubled updates, differing models, and attackers who succeeded.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

import click
import msgspec

from benchmarks.attacks.faults_without_attacker import DAMAGE
from benchmarks.attacks.malicious_agents import ATTACKERS
from benchmarks.attacks.process_faults import PROCESS_FAULTS
from benchmarks.attacks.strangers import STRANGERS, behind_tls
from benchmarks.faults.outcome import Outcome
from benchmarks.faults.scenarios import SCENARIOS, Scenario, explain_impossible, list_scenarios
from benchmarks.faults.trial import Trial, conduct
from benchmarks.output_path_checks import check_log
from federated.errors import ConfigError, Unknown
from federated.runtime.console import FORMAT, report_errors, speaker

__all__ = [
    "CALM",
    "CALM_TLS",
    "CATALOGUE",
    "Result",
    "Summary",
    "command",
    "draw_pairs",
    "has_failed",
    "list_jobs",
    "may_combine",
    "run_attack",
    "summarise",
    "summarise_all",
]

DELAY = 0.3  # seconds of an honest training, so that a round takes a realistic time
CALM, CALM_TLS = "undisturbed", "undisturbed, TLS"
EVERY = 10  # runs between two undisturbed ones, because the speed of a machine changes
NEAREST = 4  # undisturbed runs around a run, to compare it with
# largest ratio of the seconds of a round with an attacker of HOLDING to those of undisturbed rounds
SLOWED = 2.0
# attacks that must not delay honest agents
HOLDING = (
    "claims 1e-12 seconds a step",
    "mute",
    "mute every second round",
    "drips",
    "comes and goes",
)


def do_nothing(trial: Trial) -> None:
    """No attack: a run to compare with."""
    trial.rounds = 10
    trial.after_begin.append(trial.record_fault)


# no attacker belongs to a fleet with HTTP transfers or a standby
FAULTS = {
    name: SCENARIOS[name]
    for name in list_scenarios("mosquitto")
    if not name.startswith(("HTTP", "store")) and not name.endswith("standby")
}
CATALOGUE: Mapping[str, Scenario] = MappingProxyType(
    {**ATTACKERS, **STRANGERS, **DAMAGE, **PROCESS_FAULTS, **FAULTS}
)
TLS = {*STRANGERS, "enrolment killed", *(name for name in ATTACKERS if name.startswith("flood"))}
CALMS: Mapping[str, Scenario] = MappingProxyType({CALM: do_nothing, CALM_TLS: behind_tls})
# these control the coordinator's start, its files or its network in ways that exclude each other
EXCLUSIVE = (
    *(
        name
        for name in CATALOGUE
        if name.startswith(("bit flip", "coordinator", "clock", "two", "power"))
    ),
    "1 MB/s and 300 ms",
    "agent pauses past its keepalive",
    "agent process killed",
    "disk of an agent full",
    "disk full",
    "descriptors exhausted",
    "memory exhausted",
    "export killed",
    "release killed",
)
# these need a broker of their own, which a coordinator with TLS starts itself
NEED_BROKER = (
    *(name for name in CATALOGUE if name.startswith(("broker", "one-way", "two"))),
    *("upload cut", "download cut", "1 MB/s and 300 ms", "slow subscriber"),
    *("agent process killed", "disk of an agent full", "power cut of an agent"),
    *("agent pauses past its keepalive", "export killed", "release killed"),
    "broker drops retained messages",
)
# these start agents that train, while an attacker belongs to a fleet of raw agents
REAL_AGENTS = {
    "agent pauses past its keepalive",
    "agent process killed",
    "disk of an agent full",
    "power cut of an agent",
}
# seconds: limit of a round with an attacker and a fault. A fault may lose an offer, which agents
# repeat after 5 s: longer than the limit of a round with an attacker alone
PAIR_DEADLINE = 20.0


class Result(msgspec.Struct, frozen=True):
    """Outcome of one run.

    name: of the scenario, or of two with a plus
    outcome: see `Outcome`
    intruded: number of forbidden actions in which attackers succeeded
    round_s: median seconds of the rounds after the first; 0 if there are none
    """

    name: str
    outcome: Outcome
    intruded: int
    round_s: float


@dataclass(frozen=True)
class Summary:
    """Results of a scenario.

    injected: runs with an attack or fault
    survived: those that finished all rounds
    lost, doubled: honest updates in no model, or in a model twice
    equal: runs whose model equals, bit for bit, that of an undisturbed run with the same updates
    intruded: number of forbidden actions in which attackers succeeded
    honest_ratio: median seconds of an honest round over those of undisturbed runs shortly before
        and after
    why: failure and seed of each run that failed
    """

    name: str
    injected: int
    survived: int
    lost: int
    doubled: int
    equal: int
    intruded: int
    honest_ratio: float
    why: tuple[str, ...] = ()


def run_attack(name: str, folder: Path, seed: int, kind: str = "mosquitto") -> Result:
    """Run a scenario, or two whose names are joined with a plus."""
    folder.mkdir(parents=True)
    trial = Trial(folder, seed, kind)
    trial.how, trial.forked = replace(trial.how, delay=DELAY), True

    def prepare(one: Trial) -> None:
        parts = name.split(" + ")
        for part in parts:
            (CALMS.get(part) or CATALOGUE[part])(one)
        if one.others and not all(part in ATTACKERS for part in parts):
            one.settings["fleet.deadline"] = PAIR_DEADLINE

    with trial.stack:
        outcome = conduct(trial, name, prepare)
    later = trial.read_durations()[1:]
    return Result(name, outcome, trial.intruded, statistics.median(later) if later else 0.0)


def may_combine(one: str, other: str) -> bool:
    """Return True if two scenarios can disturb the same run."""
    tls = {one, other} & TLS
    return not (
        one == other
        or (one in EXCLUSIVE and other in EXCLUSIVE)
        or (one in ATTACKERS and other in ATTACKERS)
        or ({one, other} & REAL_AGENTS and {one, other} & set(ATTACKERS))
        or (tls and {one, other} & set(NEED_BROKER))
    )


def draw_pairs(count: int, seed: int) -> list[str]:
    """Return pairs of scenarios, as their names joined with a plus."""
    rng, names = random.Random(seed), list(CATALOGUE)  # noqa: S311  # repeatable, not secret
    pairs = list[str]()
    while len(pairs) < count:
        one, other = rng.sample(names, 2)
        if may_combine(one, other) and not any(map(explain_impossible, (one, other))):
            pairs.append(f"{one} + {other}")
    return pairs


def summarise(name: str, results: Sequence[Result], ratios: Sequence[float]) -> Summary:
    """Return the summary of a scenario's runs. ratios: seconds of a round over undisturbed ones."""
    outcomes = [one.outcome for one in results]
    return Summary(
        name,
        sum(outcome.injected > 0 for outcome in outcomes),
        sum(outcome.survived for outcome in outcomes),
        sum(outcome.lost for outcome in outcomes),
        sum(outcome.doubled for outcome in outcomes),
        sum(outcome.equal for outcome in outcomes),
        sum(one.intruded for one in results),
        round(statistics.median(ratios), 2) if ratios else 0.0,
        tuple(f"seed {outcome.seed}: {outcome.why}" for outcome in outcomes if outcome.why),
    )


def has_failed(summary: Summary) -> bool:
    """Return True if a run lost, doubled or admitted something, or differs, or if an agent
    held up the others.
    """
    wrong = summary.lost or summary.doubled or summary.intruded
    wrong = wrong or (summary.name in HOLDING and summary.honest_ratio > SLOWED)
    return bool(wrong) or min(summary.survived, summary.equal) < summary.injected


def run_job(job: tuple[str, Path, int, str]) -> Result:
    """Return the result of a run, in a process of its own."""
    return run_attack(*job)


def read_log(log: Path | None) -> list[Result]:
    """Return the results of earlier calls, and remove a last line that was cut off. ConfigError: a
    line is not a result, or the only one is cut off; nothing is removed from such a file.
    """
    check_log(log)
    if log is None or not log.exists():
        return []
    whole, _, torn = log.read_bytes().rpartition(b"\n")
    problem = f"--log {log}: expected a file that this benchmark wrote"
    if torn and not whole:
        raise ConfigError(f"{problem}, found no complete line; choose another file")
    try:
        results = [msgspec.json.decode(line, type=Result) for line in whole.splitlines()]
    except msgspec.DecodeError as error:
        raise ConfigError(f"{problem}: {error}; choose another file") from error
    if torn:
        os.truncate(log, len(whole) + 1)
    return results


def lines(found: Iterable[Summary]) -> list[str]:
    """Return the table for the terminal."""
    head = f"{'scenario':60}{'injected':>9}{'survived':>9}{'lost':>6}{'doubled':>8}{'equal':>6}"
    rows = [
        f"{s.name:60}{s.injected:9}{s.survived:9}{s.lost:6}{s.doubled:8}{s.equal:6}"
        f"{s.intruded:9}{s.honest_ratio:8.2f}"
        for s in found
    ]
    return [
        f"{head}{'intruded':>9}{'ratio':>8}",
        *rows,
        *(f"{s.name}: {why}" for s in found for why in s.why),
    ]


def choose(names: Sequence[str]) -> list[str]:
    """Return the given or all scenarios. Unknown: no such scenario."""
    if unknown := [name for name in names if name not in CATALOGUE]:
        raise Unknown("attack", unknown[0], list(CATALOGUE))
    return list(names) or [name for name in CATALOGUE if not explain_impossible(name)]


def list_jobs(chosen: Sequence[str], times: int, pairs: int, seed: int) -> list[tuple[str, int]]:
    """Return the name and seed of every run, with undisturbed ones in between."""
    names = [*(name for _ in range(times) for name in chosen), *draw_pairs(pairs, seed)]
    calms = sorted({find_calm(name) for name in names})
    mixed = [
        name for at in range(0, len(names), EVERY) for name in (*calms, *names[at : at + EVERY])
    ]
    return [
        (name, zlib.crc32(f"{seed} {name} {at}".encode()))
        for at, name in enumerate([*mixed, *calms])
    ]


def find_calm(name: str) -> str:
    """Return the undisturbed scenario to compare with."""
    return CALM_TLS if name == CALM_TLS or TLS & set(name.split(" + ")) else CALM


@click.command("attacks")
@click.option(
    "--attack", "names", multiple=True, metavar="NAME", help="run only this attack; may be repeated"
)
@click.option(
    "--times",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="number of runs with each attack",
)
@click.option(
    "--pairs",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="number of runs with two attacks at once",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="seed of the times of the attacks, and of the pairs",
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
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="save the results in this file, and resume from it",
)
@FORMAT
def command(
    names: tuple[str, ...],
    times: int,
    pairs: int,
    seed: int,
    workers: int,
    log: Path | None,
    form: str,
) -> None:
    """Attack runs, and check that they survive.

    The attackers are malicious agents, silent agents, and strangers without a certificate. Other
    attacks damage files and kill processes. The benchmark fails if updates are lost or counted
    twice, or if an attacker is admitted.
    """
    with report_errors("python -m benchmarks attacks", "coordinator"):
        jobs, say = list_jobs(choose(names), times, pairs, seed), speaker(form)
        results = [one for one in read_log(log) if (one.name, one.outcome.seed) in jobs]
        say(f"seed {seed}, {len(jobs)} runs")
        done = {(one.name, one.outcome.seed) for one in results}
        left = [job for job in jobs if job not in done]
        with (
            tempfile.TemporaryDirectory(
                prefix="espalier-attacks-", ignore_cleanup_errors=True
            ) as folder,
            ProcessPoolExecutor(workers) as pool,
        ):
            work = [
                (name, Path(folder) / str(at), one, "mosquitto")
                for at, (name, one) in enumerate(left)
            ]
            for result in pool.map(run_job, work):
                results.append(result)
                if log is not None:
                    with log.open("ab") as file:
                        file.write(msgspec.json.encode(result) + b"\n")
                why = f": {result.outcome.why}" if result.outcome.why else ""
                say(
                    f"{len(results):4} of {len(jobs)}  {result.name}, "
                    f"{result.outcome.seconds:.0f} s{why}"
                )
        found = summarise_all(jobs, results)
        for line in lines(found):
            say(line)
        if form == "json":
            rows = [asdict(one) for one in found]
            click.echo(json.dumps({"seed": seed, "runs": len(results), "scenarios": rows}))
        if any(map(has_failed, found)):
            sys.exit(1)


def summarise_all(jobs: Sequence[tuple[str, int]], results: Sequence[Result]) -> list[Summary]:
    """Return the summary of each scenario. jobs: name and seed of every run, in order."""
    places = {job: at for at, job in enumerate(jobs)}
    calms: dict[str, dict[int, float]] = {name: {} for name in CALMS}
    for one in results:
        if one.name in CALMS and one.round_s:
            calms[one.name][places[one.name, one.outcome.seed]] = one.round_s
    found = dict[str, list[Result]]()
    for one in results:
        found.setdefault(one.name, []).append(one)
    return [
        summarise(
            name,
            same,
            [
                one.round_s / calm
                for one in same
                if one.round_s
                and (calm := find_pace(calms[find_calm(name)], places[name, one.outcome.seed]))
            ],
        )
        for name, same in found.items()
    ]


def find_pace(calms: Mapping[int, float], place: int) -> float:
    """Return the median seconds of the undisturbed rounds nearest to a run; 0 if there are none.
    calms: place of a run in the campaign -> seconds.
    """
    nearest = sorted(calms, key=lambda at: abs(at - place))[:NEAREST]
    return statistics.median(map(calms.__getitem__, nearest)) if nearest else 0.0
