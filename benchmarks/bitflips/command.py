"""`python -m benchmarks bitflips`: flip one random bit in the files of an interrupted run, resume
the run, and count the flips that went unnoticed or did harm.

Each trial flips one bit, runs `coordinator check` on a copy of the run, and resumes the run with
the production code. If the run cannot be resumed, it runs `coordinator check --repair` first.
"""

from __future__ import annotations

import random
import secrets
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import click

from benchmarks.bitflips.flip_trial import CORE, KINDS, Flip, Outcome, run_undamaged, try_flip
from benchmarks.bitflips.interrupted_run import find_stops
from federated.runtime.console import FORMAT, print_result, report_errors, speaker

__all__ = ["command", "draw_flips", "has_failed", "summarise"]

STOPS = 12  # instants at which runs are interrupted


def draw_flips(count: int, seed: int, stops: Sequence[int], robust: Sequence[int]) -> list[Flip]:
    """Return random flips. Five of six damage something whose damage must be detected (`CORE`).

    stops, robust: instants at which the run without, and the run with a robust rule is interrupted.
    """
    rng = random.Random(seed)  # noqa: S311  # repeatable, not secret
    chosen = rng.sample(stops, min(STOPS, len(stops)))
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    return [
        Flip(rng.randrange(2**32), kind, rng.choice(robust if kind == "kept" else chosen))
        for kind in kinds
    ]


def summarise(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the counts of all outcomes, and of each kind."""

    def count(several: Sequence[Outcome]) -> dict[str, int]:
        verdicts = Counter(one.verdict for one in several)
        names = "found", "equal", "trained_on", "crashed", "stalled"
        return {"flips": len(several), **{name: verdicts[name] for name in names}}

    kinds = {kind: count([one for one in outcomes if one.flip.kind == kind]) for kind in KINDS}
    missed = sum(one["equal"] for kind, one in kinds.items() if kind in CORE)
    return {**count(outcomes), "missed": missed, "by_kind": kinds}


def has_failed(found: Mapping[str, Any]) -> bool:
    """Return True if damage was trained on, crashed or stalled a run, or was missed."""
    return any(found[name] for name in ("trained_on", "crashed", "stalled", "missed"))


def run_job(job: tuple[Flip, str]) -> Outcome:
    return try_flip(*job)


@click.command("bitflips")
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    metavar="N",
    help="number of bits to flip",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="seed that selects the bits  [default: random; it is printed]",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="number of processes",
)
@FORMAT
def command(count: int, seed: int | None, workers: int, form: str) -> None:
    """Flip bits in the files of an interrupted run, and resume it.

    Each trial flips one bit in a checkpoint, a snapshot, a received update, a row of the database,
    or an update that is kept for a robust rule. The benchmark fails if damage is not detected, or
    if damaged weights are trained.
    """
    with report_errors("python -m benchmarks bitflips", "coordinator"):
        say = speaker(form)
        seed = secrets.randbelow(2**31) if seed is None else seed
        flips = draw_flips(count, seed, find_stops(), find_stops(robust=True))
        say(f"seed {seed}, {count} flips")
        with ProcessPoolExecutor(workers) as pool:
            # the run with a robust rule is interrupted only once, so one reference serves all flips
            stops = sorted({flip.stop for flip in flips if not flip.robust})
            undamaged = dict(zip(stops, pool.map(run_undamaged, stops), strict=True))
            robust = pool.submit(run_undamaged, 0, robust=True).result()
            jobs = [(flip, robust if flip.robust else undamaged[flip.stop]) for flip in flips]
            outcomes = list(pool.map(run_job, jobs))
        for one in outcomes:
            if one.verdict not in ("found", "equal") or (
                one.verdict == "equal" and one.flip.kind in CORE
            ):
                say(f"{one.verdict}: {one.flip}, {one.file}: {one.crashed or one.messages}")
        found = summarise(outcomes)
        for kind, counts in found["by_kind"].items():
            say(f"{kind:12}" + "".join(f"{name} {many:4}  " for name, many in counts.items()))
        print_result({"seed": seed, **found}, form)
        if has_failed(found):
            sys.exit(1)
