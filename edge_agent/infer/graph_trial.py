"""Test a combination of graph, provider and number of threads to run a submodel of a release with
on this device.

A combination passes if it reproduces the outputs of the exporter's machine for the same noise
(`export.release_reader.read_check`), and if its graph loses at most one point of accuracy, both
where the release was made (`export.release_reader.accurate_variants`) and on this device's own
held-out examples, if any. Does not import torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from export import release_reader
from export.latency import Latency, measure_latency
from export.onnx_session import Array, Session, load
from export.release_reader import Bundle, Entry, Variant
from federated.errors import DataError, ExportError

__all__ = [
    "CPU",
    "Held",
    "Trial",
    "TrialSetup",
    "check_outputs",
    "measure_session",
    "open_session",
    "run_trial",
]

CPU = "CPUExecutionProvider"
# relative to the largest output (or 1): allowed deviation of float32 from the exporter's machine;
# other processors add in another order
FLOAT_TOLERANCE = 1e-3
INT8_TOLERANCE = 0.1  # average deviation of int8, relative to the outputs' standard deviation.
# Measured on four networks trained on Fashion-MNIST: int8 computed in float32 instead deviates by
# up to 0.037. Processors that multiply bytes without VNNI saturate at 16 bits; emulated, they
# deviate by 0.010, 0.039 and 0.131. The first two cost no accuracy; larger deviations are rejected.
MAX_LOSS = 0.01  # largest accepted loss of accuracy on own examples
TOO_SLOW = 2.0  # factor of the fastest p90 so far beyond which a combination is not timed further
# timing of each combination: minimum seconds, minimum runs, and maximum seconds
SECONDS, RUNS, MAX_SECONDS = 0.5, 50, 5.0

Held = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Raw examples [n, *inputs] that this device never trained on, and their labels [n, ...]."""


@dataclass(frozen=True)
class Trial:
    """A combination to run a submodel with, and the results of its test.

    kind: kind of the graph
    provider: name in ONNX Runtime
    threads: threads of one run
    p50, p90: seconds of one example; 0 if not timed
    runs: number of timed runs
    difference: relative deviation from the exporter's machine (see FLOAT_TOLERANCE and
        INT8_TOLERANCE), or None
    accuracy: on this device's own examples, or None without any
    reason: why this combination is rejected; empty if it passes
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
class TrialSetup:
    """Data that every combination for a submodel is tested with.

    folder: folder of the release
    bundle: the release's manifest
    entry: the submodel's entry in it
    x: noise, raw inputs [n, *inputs]
    wanted: recorded outputs for x, by file name of the graph
    held: this device's own examples, or None
    """

    folder: Path
    bundle: Bundle
    entry: Entry
    x: Array
    wanted: dict[str, Array]
    held: Held | None

    @classmethod
    def open(cls, folder: Path, submodel: str, held: Held | None) -> TrialSetup:
        """Read and check a release. Raises ExportError, Unknown; DataError if the device's own
        examples do not fit the release.
        """
        found = release_reader.read(folder, submodel)
        if held is not None:
            own = (tuple(held[0].shape[1:]), held[0].dtype.name)
            if own != (found.inputs, found.dtype):
                raise DataError(
                    f"--data: expected {found.dtype} examples of shape {list(found.inputs)} as in "
                    f"the release, found {own[1]} of shape {list(own[0])}"
                )
        x, wanted = release_reader.read_check(folder, found)
        return cls(folder, found, release_reader.find_entry(found, submodel), x, wanted, held)


def run_trial(
    setup: TrialSetup,
    variant: Variant,
    provider: str,
    threads: int,
    reference: Trial | None,
    fastest: float,
) -> tuple[Trial, Session | None]:
    """Load, test and time a combination for a submodel. Return its session only if it passes.

    reference: trial of float32 on the CPU, if any
    fastest: p90 of the fastest combination so far
    """
    trial = Trial(variant.kind, provider, threads)
    try:
        session = open_session(setup, variant, provider, threads)
    except ExportError as error:
        reason = f"does not load: {str(error).replace(f'{setup.folder}/', '')}"
        return replace(trial, reason=reason), None
    if session.providers[0] != provider:
        return replace(trial, reason=f"the runtime fell back to {session.providers[0]}"), None
    reason, difference = check_outputs(setup, variant, session)
    trial = replace(
        trial, difference=difference, reason=reason or _describe_release_loss(setup, variant)
    )
    if not trial.reason and setup.held is not None:
        trial = replace(trial, accuracy=_measure_accuracy(session, *setup.held))
        trial = replace(trial, reason=_describe_own_loss(trial, reference, len(setup.held[1])))
    if trial.reason:
        return trial, None
    took = _time_session(session, setup.x[:1], fastest)
    return replace(trial, p50=took.p50, p90=took.p90, runs=took.runs), session


def open_session(setup: TrialSetup, variant: Variant, provider: str, threads: int) -> Session:
    """Load a graph for a provider; the runtime falls back to the CPU. Raises ExportError."""
    return load(
        setup.folder / variant.file.name,
        variant.file.sha256,
        providers=(provider,) if provider == CPU else (provider, CPU),
        threads=threads,
    )


def check_outputs(
    setup: TrialSetup, variant: Variant, session: Session
) -> tuple[str, float | None]:
    """Compare a session's outputs with those of the exporter's machine. Return why they deviate
    too much ("" if they do not), and the deviation.
    """
    wanted = setup.wanted.get(variant.file.name)
    if wanted is None:
        return f"{setup.bundle.check.name} has no outputs of {variant.file.name}", None
    try:
        found = session.predict(setup.x)
    except Exception as error:  # a provider's errors share no base class
        return f"does not run: {' '.join(str(error).split())[:200]}", None
    if found.shape != wanted.shape or not np.isfinite(wanted).all():
        return (
            f"{setup.bundle.check.name}: expected finite outputs {list(found.shape)} of "
            f"{variant.file.name}, found {list(wanted.shape)}",
            None,
        )
    if not np.isfinite(found).all():
        return "its output is not finite", None
    gaps = np.abs(found.astype(np.float64) - wanted)
    if variant.kind == "fp32":
        share, most = float(gaps.max() / max(1.0, np.abs(wanted).max())), FLOAT_TOLERANCE
    else:
        share, most = float(gaps.mean() / max(float(wanted.std()), 1e-6)), INT8_TOLERANCE
    return (
        f"deviates from the exporter's machine by {share:.2g}, more than {most:g}"
        if share > most
        else ""
    ), share


def measure_session(session: Session, held: Held | None) -> tuple[Latency, float | None]:
    """Return a session's latency for one example, and its accuracy on this device's own examples
    (None without any). Raises DataError.
    """
    rng = np.random.default_rng(0)
    x = rng.integers(0, session.tokens or 256, (1, *session.inputs)).astype(session.dtype)
    return _time_session(session, x, math.inf), None if held is None else _measure_accuracy(
        session, *held
    )


def _describe_release_loss(setup: TrialSetup, variant: Variant) -> str:
    """Return what int8 lost where the release was made, if that is too much."""
    if variant in release_reader.accurate_variants(setup.entry):
        return ""
    plain = setup.entry.variants[0]
    if variant.accuracy is not None and plain.accuracy is not None:
        return (
            f"its accuracy in the release is {variant.accuracy:.3f}, that of {plain.kind} "
            f"{plain.accuracy:.3f}"
        )
    return f"it agrees with {plain.kind} on only {variant.agreement:.1%} in the release"


def _describe_own_loss(trial: Trial, reference: Trial | None, examples: int) -> str:
    """Return what is lost on this device's own examples, if that is more than MAX_LOSS and than one
    example.
    """
    if reference is None or reference.accuracy is None or trial.accuracy is None:
        return ""
    lost = reference.accuracy - trial.accuracy
    return (
        f"loses {100 * lost:.1f} points of accuracy on this device's own examples"
        if lost > max(MAX_LOSS, 1 / examples) + 1e-9
        else ""
    )


def _time_session(session: Session, x: Array, fastest: float) -> Latency:
    """Time a session fully, or with a few calls if they already show that it is too slow."""
    first = measure_latency(lambda: session.predict(x), warm_up=2, runs=3, seconds=0)
    if first.least > TOO_SLOW * fastest:
        return first
    runs = max(10, min(RUNS, int(MAX_SECONDS / max(first.p50, 1e-9))))
    return measure_latency(
        lambda: session.predict(x), warm_up=min(20, runs), runs=runs, seconds=SECONDS
    )


def _measure_accuracy(session: Session, x: Array, y: Array) -> float:
    """Return the fraction of right answers; for values R2 averaged over values; for texts per
    token (masked networks: one in seven is hidden).
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
