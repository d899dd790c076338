"""Choose the graph, ONNX Runtime provider and number of threads that a device answers with: the
fastest combination that passes its test (`edge_agent.infer.graph_trial`). Does not import torch.
"""

from __future__ import annotations

import itertools
import logging
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime

from edge_agent.device.heat_and_load import BUSY, Load
from edge_agent.device.process_limits import Limits, count_cpus
from edge_agent.infer.graph_trial import (
    CPU,
    Held,
    Trial,
    TrialSetup,
    check_outputs,
    open_session,
    run_trial,
)
from export.onnx_session import Session
from federated.errors import DataError, ExportError

__all__ = [
    "Choice",
    "choose",
    "format_trials",
    "list_providers",
    "list_thread_counts",
    "sample_own",
]

log = logging.getLogger(__name__)

# a Jetson's providers, then a Pi's or phone's, then the CPU
PROVIDERS = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "XnnpackExecutionProvider", CPU)

MAX_OWN = 1000  # maximum number of the device's own examples; more take long and add little
# largest ratio to the fastest p90 at which fewer threads are preferred: they leave processors free
TOLERANCE = 1.05


@dataclass(frozen=True)
class Choice:
    """The submodel, graph, provider and thread count that a device answers with.

    version, run, round, submodel: of the release
    best: chosen trial
    released: accuracy when the release was made, or None
    examples: number of the device's own examples behind `best.accuracy`
    classes: names of the classes, if known
    busy: whether other processes used the processors during the trials, so that p50 decided instead
        of p90
    trials: all trials
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
    """Read and check a release, test every combination of graph, provider and thread count for a
    submodel of it, and return the fastest one that passes its checks.

    threads: threads of a run; 0 tries one and all available
    held: own examples, at least one (`sample_own`)
    before: earlier choice on this device. It is tested again; everything is measured again only if
        it fails.
    ExportError: no combination passes, with the reason of each; or the release is damaged. Unknown:
        no such submodel. DataError: the own examples do not fit.
    """
    setup = TrialSetup.open(folder, submodel, held)
    _warn_untrained(setup)
    if before is not None and (session := _reopen_session(setup, before.best)) is not None:
        return session, _make_choice(setup, version, before.trials, before.best, busy=before.busy)
    other_load = Load()
    trials, sessions = _try_all(setup, threads)
    if not sessions or _is_damaged(trials):
        raise ExportError(
            f"{folder}: no variant of {submodel} passes its checks on this device: "
            f"{_format_reasons(trials)}"
        )
    busy = other_load.share() >= BUSY
    best = _choose_best(trials, busy=busy)
    return sessions[best], _make_choice(setup, version, tuple(trials), trials[best], busy=busy)


def _warn_untrained(setup: TrialSetup) -> None:
    """Log that the submodel was not trained, and which ones were."""
    if setup.entry.trained_updates != 0:
        return
    trained = [one.submodel for one in setup.bundle.submodels if one.trained_updates != 0]
    log.warning(
        "serving %s, although no update of the run trained it; trained: %s",
        setup.entry.submodel,
        ", ".join(trained) or "none",
    )


def _try_all(setup: TrialSetup, threads: int) -> tuple[list[Trial], dict[int, Session]]:
    """Test every combination. Return the trials, and by index the sessions that may be the best."""
    trials, sessions = list[Trial](), dict[int, Session]()
    for variant, provider, count in itertools.product(
        setup.entry.variants, list_providers(), list_thread_counts(threads)
    ):
        fastest = min((trial.p90 for trial in trials if not trial.reason), default=math.inf)
        trial, session = run_trial(
            setup, variant, provider, count, _find_reference(trials), fastest
        )
        trials.append(trial)
        if session is not None:
            sessions[len(trials) - 1] = session
            near = _find_near(trials, busy=False).keys() | _find_near(trials, busy=True).keys()
            # release the others: all sessions together may not fit in memory
            sessions = {i: one for i, one in sessions.items() if i in near}
    return trials, sessions


def sample_own(held: Held) -> Held | None:
    """Return an evenly spaced sample of this device's own examples, or None if there are none.
    Raises DataError.
    """
    x, y = held
    if len(x) != len(y):
        raise DataError(
            f"own examples: expected as many labels as examples, found {len(y)} and {len(x)}"
        )
    chosen = np.unique(np.linspace(0, len(y) - 1, min(MAX_OWN, len(y))).round().astype(int))
    return (x[chosen], y[chosen]) if len(chosen) else None


def list_providers() -> tuple[str, ...]:
    """Return the available providers of ONNX Runtime, in the order of expected speed."""
    available = onnxruntime.get_available_providers()
    return tuple(name for name in PROVIDERS if name in available)


def list_thread_counts(threads: int = 0) -> tuple[int, ...]:
    """Return the thread counts to try: one, and all that this process may use."""
    return (threads,) if threads else tuple(sorted({1, max(1, round(count_cpus(Limits())))}))


def format_trials(choice: Choice) -> str:
    """Format the trials as a table."""
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
                ["chosen by p50, because other processes used the processors"]
                if choice.busy
                else []
            ),
        ]
    )


def _reopen_session(setup: TrialSetup, trial: Trial) -> Session | None:
    """Return the session of an earlier choice if it still passes its checks."""
    variant = next((one for one in setup.entry.variants if one.kind == trial.kind), None)
    if variant is None:
        return None
    try:
        session = open_session(setup, variant, trial.provider, trial.threads)
        reason, _ = check_outputs(setup, variant, session)
    except ExportError:
        return None
    return None if reason or session.providers[0] != trial.provider else session


def _choose_best(trials: list[Trial], *, busy: bool) -> int:
    """Return the index of the passing trial with the fewest threads among those that are about as
    fast as the fastest.

    busy: other processes use the processors and delay some calls, which affects p90 but not p50
    """
    return min(_find_near(trials, busy=busy), key=lambda i: (trials[i].threads, i))


def _find_near(trials: list[Trial], *, busy: bool) -> dict[int, float]:
    """Return the seconds, by index, of the passing trials that are about as fast as the fastest. A
    trial that is too slow for them stays so when further ones are added.
    """
    took = {
        i: trial.p50 if busy else trial.p90 for i, trial in enumerate(trials) if not trial.reason
    }
    return {i: seconds for i, seconds in took.items() if seconds <= TOLERANCE * min(took.values())}


def _find_reference(trials: list[Trial]) -> Trial | None:
    return next(
        (
            trial
            for trial in trials
            if trial.kind == "fp32" and trial.provider == CPU and not trial.reason
        ),
        None,
    )


def _is_damaged(trials: list[Trial]) -> bool:
    """Return True if float32 on the CPU fails: all other graphs derive from it, so the release is
    damaged.
    """
    plain = [trial for trial in trials if trial.kind == "fp32" and trial.provider == CPU]
    return bool(plain) and all(trial.reason for trial in plain)


def _format_reasons(trials: list[Trial]) -> str:
    reasons = {
        f"{trial.kind} on {trial.provider.removesuffix('ExecutionProvider')}: {trial.reason}": None
        for trial in trials
        if trial.reason
    }
    return "; ".join(reasons)


def _make_choice(
    setup: TrialSetup, version: str, trials: tuple[Trial, ...], best: Trial, *, busy: bool
) -> Choice:
    variant = next(variant for variant in setup.entry.variants if variant.kind == best.kind)
    examples = 0 if setup.held is None else len(setup.held[1])
    found = setup.bundle
    return Choice(
        version,
        found.run,
        found.round,
        setup.entry.submodel,
        best,
        variant.accuracy,
        examples,
        found.classes,
        busy,
        trials,
    )
