"""Which graph of a release a device answers with, and on what: every way that it has is tested, the
right ones are timed, and the fastest stays.

Right is a way that repeats what the exporter's machine said of the same noise
(`export.bundle.check_of`), whose graph lost no more than a point of accuracy where the release was
made (`export.bundle.right`), and no more on this device's own held-out examples, where it has some.
No torch here.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from edge_agent.device.limits import Limits, available_cpus
from edge_agent.device.load import BUSY, Load
from export import bundle
from export.bundle import Bundle, Entry, Variant
from export.latency import Latency, latency
from export.verify import TOKENS, Array, Session, load
from federated.errors import DataError, ExportError

__all__ = [
    "CPU",
    "PROVIDERS",
    "Choice",
    "Held",
    "Trial",
    "choose",
    "gauge",
    "own_sample",
    "providers",
    "table",
    "thread_counts",
]

log = logging.getLogger(__name__)

CPU = "CPUExecutionProvider"
# a Jetson's, then a Pi's or a phone's
PROVIDERS = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "XnnpackExecutionProvider", CPU)

# of the largest output (or of 1): how far float32 may be from the exporter's machine; other
# processors add in other orders
NEAR = 1e-3
CLOSE = 0.1  # of the outputs' spread, on average: the same of int8
# Measured on four networks trained on Fashion-MNIST: int8 done in float32 instead is off by up to
# 0.037. Processors that multiply bytes without VNNI saturate at 16 bits, emulated: 0.010, 0.039 and
# 0.131. The first two cost no accuracy; what is further off is told apart.
LOSS = 0.01  # of the accuracy on own examples
OWN = 1000  # of this device's own examples at most: more would take longer than they tell
# times the fastest p90: within it, fewer threads are better, which leaves processors to others
AS_GOOD = 1.05
SLOW = 2.0  # times the p90 of the fastest so far, after which a way is not timed any longer
# of timing each way: at least so long and so often, but at most about so many seconds
SECONDS, RUNS, LONGEST = 0.5, 50, 5.0

Held = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Raw examples [n, *inputs] that this device never trained on, and what they teach, [n, ...]."""


@dataclass(frozen=True)
class Trial:
    """One way to run a submodel. kind: of its graph; provider: as ONNX Runtime names it.

    p50, p90: seconds of one example, and runs, how many they are of; 0 where it was not timed.
    difference: from the exporter's machine, as a share (see NEAR and CLOSE); accuracy: on this
    device's own examples; None where there is none. reason: why not; empty of what is right.
    """

    kind: str
    provider: str
    threads: int
    p50: float = 0.0
    p90: float = 0.0
    runs: int = 0
    difference: float | None = None
    accuracy: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Choice:
    """What a device answers with. released: accuracy where the release was made; examples: of this
    device's own, behind `best.accuracy`.

    busy: others used the processors while it was chosen, so that p90 told too little.
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


@dataclass(frozen=True)
class _Bench:
    """What every way is tried on. x, wanted: noise, and what each graph, by its file's name, said
    of it where it was made.
    """

    folder: Path
    bundle: Bundle
    entry: Entry
    x: Array
    wanted: dict[str, Array]
    held: Held | None


def choose(
    folder: Path,
    submodel: str,
    version: str,
    *,
    threads: int = 0,
    held: Held | None = None,
    before: Choice | None = None,
) -> tuple[Session, Choice]:
    """Reads and checks a release, tries every way to run a submodel of it, and keeps the fastest
    that is right.

    threads: how many a run uses; 0 tries one and all there are. held: at least one own example
    (`own_sample`). before: what was chosen on this device as it is; it is tested again, and only
    where it is no longer right is everything measured anew.
    Raises ExportError where no way is right, with the reason of each, and for what is no such
    release; Unknown; DataError for unfit own examples.
    """
    found = bundle.read(folder, submodel)
    x, wanted = bundle.check_of(folder, found)
    bench = _Bench(folder, found, bundle.entry_of(found, submodel), x, wanted, held)
    if bench.entry.trained_updates == 0:
        trained = ", ".join(
            entry.submodel for entry in bundle.usable(found) if entry.trained_updates != 0
        )
        log.warning(
            "%s answers, although no update of the run trained it; trained: %s",
            submodel,
            trained or "none",
        )
    if before is not None and (session := _again(bench, before)) is not None:
        return session, _choice(bench, version, before.trials, before.best, busy=before.busy)
    ways = [
        (variant, provider, count)
        for variant in bench.entry.variants
        for provider in providers()
        for count in thread_counts(threads)
    ]
    trials, sessions, others = list[Trial](), dict[int, Session](), Load()
    for variant, provider, count in ways:
        trial, session = _tried(
            bench,
            variant,
            provider,
            count,
            _reference(trials),
            min((t.p90 for t in trials if not t.reason), default=math.inf),
        )
        trials.append(trial)
        if session is not None:
            near = _near(trials, busy=False).keys() | _near(trials, busy=True).keys()
            # not all, in memory
            sessions = {
                i: one for i, one in {**sessions, len(trials) - 1: session}.items() if i in near
            }
    if not sessions or _broken(trials):
        raise ExportError(
            f"{folder}: no way to run {submodel} is right on this device: {_reasons(trials)}"
        )
    busy = others.share() >= BUSY
    best = _best(trials, busy=busy)
    return sessions[best], _choice(bench, version, tuple(trials), trials[best], busy=busy)


def gauge(session: Session, held: Held | None) -> tuple[Latency, float | None]:
    """How long a session takes for one example, and how often it is right on this device's own;
    None without. Raises DataError.
    """
    rng = np.random.default_rng(0)
    high = session.outputs if session.objective in TOKENS else 256
    x = rng.integers(0, high, (1, *session.inputs)).astype(session.dtype)
    return _timed(session, x, math.inf), None if held is None else _accuracy(session, *held)


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


def _again(bench: _Bench, before: Choice) -> Session | None:
    """The session of an earlier choice, if it is still right."""
    trial = before.best
    variant = next(
        (variant for variant in bench.entry.variants if variant.kind == trial.kind), None
    )
    if variant is None:
        return None
    try:
        session = load(
            bench.folder / variant.file.name,
            variant.file.sha256,
            providers=_chain(trial.provider),
            threads=trial.threads,
        )
        reason, _ = _wrong(bench, variant, session)
    except ExportError:
        return None
    return None if reason or session.providers[0] != trial.provider else session


def _tried(
    bench: _Bench,
    variant: Variant,
    provider: str,
    threads: int,
    reference: Trial | None,
    fastest: float,
) -> tuple[Trial, Session | None]:
    """One way: loaded, tested, timed; its session only if it is right. reference: float32 on the
    CPU, where that was tried.
    """
    trial = Trial(variant.kind, provider, threads)
    try:
        session = load(
            bench.folder / variant.file.name,
            variant.file.sha256,
            providers=_chain(provider),
            threads=threads,
        )
    except ExportError as error:
        return replace(
            trial, reason=f"does not load: {str(error).replace(f'{bench.folder}/', '')}"
        ), None
    if session.providers[0] != provider:
        return replace(trial, reason=f"the runtime fell back to {session.providers[0]}"), None
    reason, difference = _wrong(bench, variant, session)
    trial = replace(trial, difference=difference, reason=reason or _lost(bench, variant))
    if not trial.reason and bench.held is not None:
        trial = replace(trial, accuracy=_accuracy(session, *bench.held))
        trial = replace(trial, reason=_own_loss(trial, reference, len(bench.held[1])))
    if trial.reason:
        return trial, None
    took = _timed(session, bench.x[:1], fastest)
    return replace(trial, p50=took.p50, p90=took.p90, runs=took.runs), session


def _chain(provider: str) -> tuple[str, ...]:
    return (provider,) if provider == CPU else (provider, CPU)


def _wrong(bench: _Bench, variant: Variant, session: Session) -> tuple[str, float | None]:
    """Why a session does not repeat what the exporter's machine said, or nothing; and how far off
    it is, as a share.
    """
    wanted = bench.wanted.get(variant.file.name)
    if wanted is None:
        return f"{bench.bundle.check.name} says nothing of {variant.file.name}", None
    try:
        found = session.predict(bench.x)
    except Exception as error:  # a provider's own, which share no base class
        return f"does not run: {' '.join(str(error).split())[:200]}", None
    if found.shape != wanted.shape or not np.isfinite(wanted).all():
        return (
            f"{bench.bundle.check.name}: expected finite outputs {list(found.shape)} of "
            f"{variant.file.name}, found {list(wanted.shape)}",
            None,
        )
    if not np.isfinite(found).all():
        return "its output is not finite", None
    gaps = np.abs(found.astype(np.float64) - wanted)
    if variant.kind == "fp32":
        share, most = float(gaps.max() / max(1.0, np.abs(wanted).max())), NEAR
    else:
        share, most = float(gaps.mean() / max(float(wanted.std()), 1e-6)), CLOSE
    return (
        f"differs from where it was made by {share:.2g}, more than {most:g}" if share > most else ""
    ), share


def _lost(bench: _Bench, variant: Variant) -> str:
    """What int8 lost where the release was made, if that is too much."""
    if variant in bundle.right(bench.entry):
        return ""
    plain = bench.entry.variants[0]
    if variant.accuracy is not None and plain.accuracy is not None:
        return (
            f"accuracy {variant.accuracy:.3f} where it was made, and {plain.accuracy:.3f} of "
            f"{plain.kind}"
        )
    return f"agrees with {plain.kind} on {variant.agreement:.1%} where it was made"


def _own_loss(trial: Trial, reference: Trial | None, examples: int) -> str:
    """What is lost on this device's own examples, beyond one of them: of a few, one weighs more
    than LOSS.
    """
    if reference is None or reference.accuracy is None or trial.accuracy is None:
        return ""
    lost = reference.accuracy - trial.accuracy
    return (
        f"loses {100 * lost:.1f} points of accuracy on this device's own examples"
        if lost > max(LOSS, 1 / examples) + 1e-9
        else ""
    )


def _timed(session: Session, x: Array, fastest: float) -> Latency:
    """As long as it takes to tell; a few calls where they say already that it is too slow."""
    first = latency(lambda: session.predict(x), warm_up=2, runs=3, seconds=0)
    if first.least > SLOW * fastest:
        return first
    runs = max(10, min(RUNS, int(LONGEST / max(first.p50, 1e-9))))
    return latency(lambda: session.predict(x), warm_up=min(20, runs), runs=runs, seconds=SECONDS)


def _accuracy(session: Session, x: Array, y: Array) -> float:
    """Share of right answers; of values R2, the mean over values; of texts, of their tokens (of a
    masked network, hidden one in seven).
    """
    if session.objective == "masked":
        hidden = np.arange(x.size).reshape(x.shape) % 7 == 3
        found = session.predict(np.where(hidden, session.outputs, x).astype(x.dtype)).argmax(axis=1)
        return float((found == x)[hidden].mean())
    found = session.predict(x)
    if session.objective == "value":
        spread = np.square(y - y.mean(axis=0)).sum(axis=0)
        errors = np.square(found - y).sum(axis=0)
        return float(np.where(spread > 1e-12, 1 - errors / np.maximum(spread, 1e-12), 0.0).mean())
    return float((found.argmax(axis=1) == y).mean())


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
    bench: _Bench, version: str, trials: tuple[Trial, ...], best: Trial, *, busy: bool
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
