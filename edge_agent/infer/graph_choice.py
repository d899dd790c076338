"""The choice of the graph, provider and number of threads that a device answers with: the fastest
of the ways that pass their test (`edge_agent.infer.trial`). No torch here.
"""

from __future__ import annotations

import itertools
import logging
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime

from edge_agent.device.limits import Limits, available_cpus
from edge_agent.device.load import BUSY, Load
from edge_agent.infer.trial import CPU, Bench, Held, Trial, check, open_session, run_trial
from export.verify import Session
from federated.errors import DataError, ExportError

__all__ = ["PROVIDERS", "Choice", "choose", "own_sample", "providers", "table", "thread_counts"]

log = logging.getLogger(__name__)

# a Jetson's, then a Pi's or a phone's
PROVIDERS = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "XnnpackExecutionProvider", CPU)

OWN = 1000  # of this device's own examples at most: more would take longer than they tell
# times the fastest p90: within it, fewer threads are better, which leaves processors to others
AS_GOOD = 1.05


@dataclass(frozen=True)
class Choice:
    """What a device answers with.

    version, run, round, submodel: of the release.
    best: the trial that was chosen.
    released: accuracy where the release was made, or None.
    examples: number of this device's own examples behind `best.accuracy`.
    classes: their names, if known.
    busy: whether other processes used the processors meanwhile, so that p50 decided, not p90.
    trials: all that was tried.
    """

    version: str
    run: str
    round: int
    submodel: str
    best: Trial
    released: float | None = None
    examples: int = 0
    classes: tuple[str, ...] = ()
    busy: bool = False
    trials: tuple[Trial, ...] = field(default=(), repr=False)


def choose(
    folder: Path,
    submodel: str,
    version: str,
    *,
    threads: int = 0,
    held: Held | None = None,
    before: Choice | None = None,
) -> tuple[Session, Choice]:
    """Read and check a release, try every way to run a submodel of it, and keep the fastest that is
    right.

    threads: how many a run uses; 0 tries one and all there are.
    held: at least one own example (`own_sample`).
    before: an earlier choice on this device. It is tested again; only if it is no longer right is
        everything measured anew.
    Raises ExportError if no way is right, with the reason of each, and for a damaged release;
    Unknown; DataError for own examples that do not fit.
    """
    bench = Bench.open(folder, submodel, held)
    _warn_untrained(bench)
    if before is not None and (session := _reopen(bench, before.best)) is not None:
        return session, _choice(bench, version, before.trials, before.best, busy=before.busy)
    others = Load()
    trials, sessions = _try_all(bench, threads)
    if not sessions or _broken(trials):
        raise ExportError(
            f"{folder}: no way to run {submodel} is right on this device: {_reasons(trials)}"
        )
    busy = others.share() >= BUSY
    best = _best(trials, busy=busy)
    return sessions[best], _choice(bench, version, tuple(trials), trials[best], busy=busy)


def _warn_untrained(bench: Bench) -> None:
    """Log that the submodel was not trained, and which ones were."""
    if bench.entry.trained_updates != 0:
        return
    trained = [one.submodel for one in bench.bundle.submodels if one.trained_updates != 0]
    log.warning(
        "%s answers, although no update of the run trained it; trained: %s",
        bench.entry.submodel,
        ", ".join(trained) or "none",
    )


def _try_all(bench: Bench, threads: int) -> tuple[list[Trial], dict[int, Session]]:
    """Try every way; the sessions of those that may turn out to be the best, by index of trial."""
    trials, sessions = list[Trial](), dict[int, Session]()
    for variant, provider, count in itertools.product(
        bench.entry.variants, providers(), thread_counts(threads)
    ):
        fastest = min((trial.p90 for trial in trials if not trial.reason), default=math.inf)
        trial, session = run_trial(bench, variant, provider, count, _reference(trials), fastest)
        trials.append(trial)
        if session is not None:
            sessions[len(trials) - 1] = session
            near = _near(trials, busy=False).keys() | _near(trials, busy=True).keys()
            # the others are closed: all sessions together may not fit in memory
            sessions = {i: one for i, one in sessions.items() if i in near}
    return trials, sessions


def own_sample(held: Held) -> Held | None:
    """As many of this device's own examples as are worth their time, evenly taken; None of none.
    Raises DataError.
    """
    x, y = held
    if len(x) != len(y):
        raise DataError(
            f"own examples: expected as many labels as examples, found {len(y)} and {len(x)}"
        )
    chosen = np.unique(np.linspace(0, len(y) - 1, min(OWN, len(y))).round().astype(int))
    return (x[chosen], y[chosen]) if len(chosen) else None


def providers() -> tuple[str, ...]:
    """What this build of ONNX Runtime can run on, the one expected to be fastest first."""
    there = onnxruntime.get_available_providers()
    return tuple(name for name in PROVIDERS if name in there)


def thread_counts(threads: int = 0) -> tuple[int, ...]:
    """How many threads to try: one, and all that this process may use."""
    return (threads,) if threads else tuple(sorted({1, max(1, round(available_cpus(Limits())))}))


def table(choice: Choice) -> str:
    """What was tried and what became of it, for a person."""
    rows: list[tuple[str, ...]] = [
        ("variant", "provider", "threads", "p50 ms", "p90 ms", "accuracy", "")
    ]
    for trial in choice.trials:
        times = [f"{1e3 * value:.3g}" if trial.runs else "-" for value in (trial.p50, trial.p90)]
        accuracy = "-" if trial.accuracy is None else f"{trial.accuracy:.3f}"
        note = "chosen" if trial == choice.best else trial.reason
        rows.append(
            (
                trial.kind,
                trial.provider.removesuffix("ExecutionProvider"),
                str(trial.threads),
                *times,
                accuracy,
                note,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(
        [
            *lines,
            *(
                ["other processes used the processors meanwhile: chosen by p50"]
                if choice.busy
                else []
            ),
        ]
    )


def _reopen(bench: Bench, trial: Trial) -> Session | None:
    """The session of an earlier choice, if it is still right."""
    variant = next((one for one in bench.entry.variants if one.kind == trial.kind), None)
    if variant is None:
        return None
    try:
        session = open_session(bench, variant, trial.provider, trial.threads)
        reason, _ = check(bench, variant, session)
    except ExportError:
        return None
    return None if reason or session.providers[0] != trial.provider else session


def _best(trials: list[Trial], *, busy: bool) -> int:
    """Of the right ones that are about as fast as the fastest, the first with the fewest threads.

    busy: others use the processors, and hold up one call in a few: then p90 tells of them, and the
    middle of this network.
    """
    return min(_near(trials, busy=busy), key=lambda i: (trials[i].threads, i))


def _near(trials: list[Trial], *, busy: bool) -> dict[int, float]:
    """The right ones that are about as fast as the fastest of them, in seconds; what is none of
    them now will be none later.
    """
    took = {
        i: trial.p50 if busy else trial.p90 for i, trial in enumerate(trials) if not trial.reason
    }
    return {i: seconds for i, seconds in took.items() if seconds <= AS_GOOD * min(took.values())}


def _reference(trials: list[Trial]) -> Trial | None:
    return next(
        (
            trial
            for trial in trials
            if trial.kind == "fp32" and trial.provider == CPU and not trial.reason
        ),
        None,
    )


def _broken(trials: list[Trial]) -> bool:
    """Whether float32 is wrong on the CPU: it is what the others were made from, so such a release
    is damaged whatever they say.
    """
    plain = [trial for trial in trials if trial.kind == "fp32" and trial.provider == CPU]
    return bool(plain) and all(trial.reason for trial in plain)


def _reasons(trials: list[Trial]) -> str:
    told = {
        f"{trial.kind} on {trial.provider.removesuffix('ExecutionProvider')}: {trial.reason}": None
        for trial in trials
        if trial.reason
    }
    return "; ".join(told)


def _choice(
    bench: Bench, version: str, trials: tuple[Trial, ...], best: Trial, *, busy: bool
) -> Choice:
    variant = next(variant for variant in bench.entry.variants if variant.kind == best.kind)
    examples = 0 if bench.held is None else len(bench.held[1])
    found = bench.bundle
    return Choice(
        version,
        found.run,
        found.round,
        bench.entry.submodel,
        best,
        variant.accuracy,
        examples,
        found.classes,
        busy,
        trials,
    )
