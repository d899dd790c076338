"""The test of one way to run a submodel of a release on this device: a graph, a provider and a
number of threads.

A way is right if it repeats what the exporter's machine computed from the same noise
(`export.bundle.check_of`), if its graph lost no more than a point of accuracy where the release was
made (`export.bundle.accurate_variants`), and no more on this device's own held-out examples, if it
has any.
No torch here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from export import bundle
from export.bundle import Bundle, Entry, Variant
from export.latency import Latency, measure_latency
from export.verify import TOKENS, Array, Session, load
from federated.errors import ExportError

__all__ = ["CPU", "Bench", "Held", "Trial", "check", "gauge", "open_session", "run_trial"]

CPU = "CPUExecutionProvider"
# of the largest output (or of 1): how far float32 may be from the exporter's machine; other
# processors add in other orders
NEAR = 1e-3
CLOSE = 0.1  # of the outputs' spread, on average: the same of int8
# Measured on four networks trained on Fashion-MNIST: int8 done in float32 instead is off by up to
# 0.037. Processors that multiply bytes without VNNI saturate at 16 bits, emulated: 0.010, 0.039 and
# 0.131. The first two cost no accuracy; what is further off is told apart.
LOSS = 0.01  # of the accuracy on own examples
SLOW = 2.0  # times the p90 of the fastest so far, after which a way is not timed any longer
# of timing each way: at least so long and so often, but at most about so many seconds
SECONDS, RUNS, LONGEST = 0.5, 50, 5.0

Held = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Raw examples [n, *inputs] that this device never trained on, and what they teach, [n, ...]."""


@dataclass(frozen=True)
class Trial:
    """One way to run a submodel, and what its test found.

    kind: of the graph.
    provider: as ONNX Runtime names it.
    threads: of one run.
    p50, p90: seconds of one example; 0 if it was not timed.
    runs: number of runs that p50 and p90 are of.
    difference: from the exporter's machine, as a share (see NEAR and CLOSE), or None.
    accuracy: on this device's own examples, or None without any.
    reason: why this way is refused; empty if it is right.
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
class Bench:
    """What every way to run a submodel is tested on.

    folder: of the release.
    bundle: the release's manifest.
    entry: the submodel's part of it.
    x: noise, raw inputs [n, *inputs].
    wanted: the outputs for x where the release was made, by file name of the graph.
    held: this device's own examples, or None.
    """

    folder: Path
    bundle: Bundle
    entry: Entry
    x: Array
    wanted: dict[str, Array]
    held: Held | None

    @classmethod
    def open(cls, folder: Path, submodel: str, held: Held | None) -> Bench:
        """Read and check a release. Raises ExportError, Unknown."""
        found = bundle.read(folder, submodel)
        x, wanted = bundle.check_of(folder, found)
        return cls(folder, found, bundle.entry_of(found, submodel), x, wanted, held)


def run_trial(
    bench: Bench,
    variant: Variant,
    provider: str,
    threads: int,
    reference: Trial | None,
    fastest: float,
) -> tuple[Trial, Session | None]:
    """Load, test and time one way to run a submodel; return its session only if it is right.

    reference: the trial of float32 on the CPU, if there was one.
    fastest: p90 of the fastest way so far.
    """
    trial = Trial(variant.kind, provider, threads)
    try:
        session = open_session(bench, variant, provider, threads)
    except ExportError as error:
        reason = f"does not load: {str(error).replace(f'{bench.folder}/', '')}"
        return replace(trial, reason=reason), None
    if session.providers[0] != provider:
        return replace(trial, reason=f"the runtime fell back to {session.providers[0]}"), None
    reason, difference = check(bench, variant, session)
    trial = replace(trial, difference=difference, reason=reason or _lost(bench, variant))
    if not trial.reason and bench.held is not None:
        trial = replace(trial, accuracy=_accuracy(session, *bench.held))
        trial = replace(trial, reason=_own_loss(trial, reference, len(bench.held[1])))
    if trial.reason:
        return trial, None
    took = _timed(session, bench.x[:1], fastest)
    return replace(trial, p50=took.p50, p90=took.p90, runs=took.runs), session


def open_session(bench: Bench, variant: Variant, provider: str, threads: int) -> Session:
    """Load a graph for a provider; the runtime falls back to the CPU. Raises ExportError."""
    return load(
        bench.folder / variant.file.name,
        variant.file.sha256,
        providers=(provider,) if provider == CPU else (provider, CPU),
        threads=threads,
    )


def check(bench: Bench, variant: Variant, session: Session) -> tuple[str, float | None]:
    """Compare a session's outputs with those of the exporter's machine; return why they differ too
    much (empty if they do not), and by what share.
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


def gauge(session: Session, held: Held | None) -> tuple[Latency, float | None]:
    """How long a session takes for one example, and how often it is right on this device's own;
    None without. Raises DataError.
    """
    rng = np.random.default_rng(0)
    high = session.outputs if session.objective in TOKENS else 256
    x = rng.integers(0, high, (1, *session.inputs)).astype(session.dtype)
    return _timed(session, x, math.inf), None if held is None else _accuracy(session, *held)


def _lost(bench: Bench, variant: Variant) -> str:
    """State what int8 lost where the release was made, if that is too much."""
    if variant in bundle.accurate_variants(bench.entry):
        return ""
    plain = bench.entry.variants[0]
    if variant.accuracy is not None and plain.accuracy is not None:
        return (
            f"accuracy {variant.accuracy:.3f} where it was made, and {plain.accuracy:.3f} of "
            f"{plain.kind}"
        )
    return f"agrees with {plain.kind} on {variant.agreement:.1%} where it was made"


def _own_loss(trial: Trial, reference: Trial | None, examples: int) -> str:
    """State what is lost on this device's own examples, if that is more than LOSS and than one
    example.
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
    first = measure_latency(lambda: session.predict(x), warm_up=2, runs=3, seconds=0)
    if first.least > SLOW * fastest:
        return first
    runs = max(10, min(RUNS, int(LONGEST / max(first.p50, 1e-9))))
    return measure_latency(
        lambda: session.predict(x), warm_up=min(20, runs), runs=runs, seconds=SECONDS
    )


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
