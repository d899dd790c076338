"""Keep a track record of each agent in a run: how far its predicted time and memory were off, and
which submodels it could not train.

A setback (a late update, a failure, too little memory) bars the agent from that submodel and larger
ones until it has finished `PROOF` rounds in time. Each further setback at the same submodel doubles
that number. Records are frozen; pure functions return updated ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal

import msgspec

from federated.task import Profile, Timing

__all__ = [
    "PROOF",
    "Observed",
    "Setback",
    "Standing",
    "count_round",
    "learn",
    "list_active",
    "record_failure",
    "record_in_time",
    "record_late",
    "record_timing",
    "reset_timings",
]

FIRST_WEIGHT = 0.5  # weight of the first measurement; the prediction has the rest
WEIGHT = 0.3  # weight of later measurements in the moving average
# weight of later measurements in the fleet's pace: small, so that one slow round of the fastest
# device does not change the submodels of all others
PACE_WEIGHT = 0.1
JUMP = 1.5  # factor from the average at which a measurement replaces it: the device has changed
PROOF = 3  # rounds in time after a setback until the submodel is tried again
MAX_DOUBLINGS = 5  # of PROOF
# shortest transfer, in seconds, that measures the link: shorter ones measure the coordinator's loop
MIN_TRANSFER = 1.0
MIN_MEMORY = 64e6  # smallest predicted bytes to learn from: allocators and libraries take as much
MEMORY_RANGE = (0.5, 4.0)  # limits of measured over predicted memory

Kind = Literal["late", "memory", "failed"]


@dataclass(frozen=True)
class Observed:
    """The measurements of one training.

    predicted_step: seconds per step, from the profile alone.
    predicted_memory: bytes, from the profile alone.
    settled: seconds from task to accepted update, by the coordinator's clock.
    bytes: transferred, down and up together.
    steps: taken.
    step: mean seconds per step, as reported by the device; 0: not reported.
    seconds: of the training, as reported by the device; 0: not reported.
    peak: bytes at the peak, as reported by the device; 0: not reported.
    """

    predicted_step: float
    predicted_memory: int
    settled: float
    bytes: int
    steps: int = 0
    step: float = 0.0
    seconds: float = 0.0
    peak: int = 0


@dataclass(frozen=True)
class Setback:
    """A submodel that an agent could not train.

    submodel: its name.
    kind: of the setback.
    round: of the last one.
    words: for people.
    times: number of setbacks at this submodel.
    proofs: rounds in time until it is tried again.
    share: fraction of its predicted seconds that the agent's next submodel must stay below.
    """

    submodel: str
    kind: Kind
    round: int
    words: str
    times: int = 1
    proofs: int = PROOF
    share: float = 1.0


@dataclass(frozen=True)
class Standing:
    """An agent's record so far.

    basis: digest of the profile's timings, from which predictions start.
    trained: number of measured trainings.
    step: measured over predicted step time, a moving average.
    memory: measured over predicted memory, a moving average.
    rate: bytes per second of its transfers; 0: as its profile says.
    extra: seconds of a training besides its steps, at the profile's speed.
    misses: late rounds in a row.
    setbacks: the latest last.
    usual: as step, but rises slowly; it sets the fleet's pace.
    timings: of the submodels that an agent without timings in its profile has trained, at its speed
        in the first of these trainings.
    """

    basis: str = ""
    trained: int = 0
    step: float = 1.0
    memory: float = 1.0
    rate: float = 0.0
    extra: float = 0.0
    misses: int = 0
    setbacks: tuple[Setback, ...] = ()
    usual: float = 1.0
    timings: tuple[Timing, ...] = ()


def reset_timings(standing: Standing, profile: Profile) -> Standing:
    """Forget measured times if the profile has new timings. Memory and failures are kept, since
    a profile does not measure them.
    """
    basis = sha256(msgspec.json.encode(profile.timings)).hexdigest()[:16]
    if standing.basis == basis:
        return standing
    return Standing(
        basis,
        memory=standing.memory,
        setbacks=tuple(one for one in standing.setbacks if one.kind != "late"),
    )


def learn(standing: Standing, seen: Observed) -> Standing:
    """Update the averages after a training. Simulated devices report no seconds and change
    nothing.
    """
    if not seen.seconds:
        return standing
    weight = WEIGHT if standing.trained else FIRST_WEIGHT
    pace_weight = PACE_WEIGHT if standing.trained else FIRST_WEIGHT
    ratio = seen.step / seen.predicted_step if seen.step and seen.predicted_step else standing.step
    step = update_average(standing.step, ratio, weight)
    extra = max(0.0, seen.seconds - seen.steps * seen.step) / ratio if seen.step else standing.extra
    if standing.trained:  # the first training also warms up: fall at once, rise slowly
        extra = min(extra, standing.extra + WEIGHT * (extra - standing.extra))
    return replace(
        standing,
        trained=standing.trained + 1,
        step=step,
        usual=min(step, standing.usual + pace_weight * (ratio - standing.usual)),
        memory=update_memory(standing.memory, seen),
        rate=update_rate(standing.rate, seen),
        extra=extra,
    )


def record_timing(standing: Standing, timing: Timing) -> Standing:
    """Return the record with the step time of a submodel, unless it has one. Its later times change
    `step`.
    """
    if timing.submodel in (one.submodel for one in standing.timings):
        return standing
    first = replace(timing, seconds=timing.seconds / standing.step)
    return replace(standing, timings=(*standing.timings, first))


def update_average(before: float, found: float, weight: float) -> float:
    """Return the moving average; a measurement that is far off replaces it."""
    near = before / JUMP <= found <= before * JUMP
    return before + weight * (found - before) if near else found


def update_memory(before: float, seen: Observed) -> float:
    if not seen.peak or seen.predicted_memory < MIN_MEMORY:
        return before
    least, most = MEMORY_RANGE
    return min(max(before + WEIGHT * (seen.peak / seen.predicted_memory - before), least), most)


def update_rate(before: float, seen: Observed) -> float:
    """Return the link's bytes per second, from the time of the round that was not training."""
    seconds = seen.settled - seen.seconds
    if seconds < MIN_TRANSFER:
        return max(before, seen.bytes / MIN_TRANSFER) if before else 0.0  # a lower limit
    found = seen.bytes / seconds
    return update_average(before, found, WEIGHT) if before else found


# ---- setbacks ------------------------------------------------------------------------------------


def list_active(standing: Standing) -> list[Setback]:
    """Return the setbacks that still bar the agent from a submodel."""
    return [setback for setback in standing.setbacks if setback.proofs > 0]


def record_in_time(standing: Standing, above: Sequence[str] = ()) -> Standing:
    """Return the record after a round that the agent finished in time.

    above: names of the submodels no larger than the one it trained; their setbacks are forgotten.
    """
    kept = tuple(setback for setback in standing.setbacks if setback.submodel not in above)
    return replace(count_round(replace(standing, setbacks=kept)), misses=0)


def count_round(standing: Standing) -> Standing:
    """Count a round toward the latest active setback. Earlier ones count once it is over."""
    active = list_active(standing)
    if not active:
        return standing
    latest = active[-1]
    counted = replace(latest, proofs=latest.proofs - 1)
    setbacks = tuple(counted if one is latest else one for one in standing.setbacks)
    return replace(standing, setbacks=setbacks)


def record_late(
    standing: Standing, submodel: str, round: int, elapsed: float, predicted: float
) -> Standing:
    """Return the record after an update that had not arrived in `elapsed` seconds, where
    `predicted` were expected. Each in a row halves the time that the next submodel may take.
    """
    ratio = max(1.0, elapsed / predicted) if predicted > 0 else 1.0
    setback = Setback(
        submodel,
        "late",
        round,
        f"was late in round {round} with {submodel}",
        share=0.5**standing.misses,
    )
    return replace(
        add_setback(standing, setback), misses=standing.misses + 1, step=standing.step * ratio
    )


def record_failure(standing: Standing, submodel: str, round: int, reason: str) -> Standing:
    """Return the record after a training that failed."""
    where = f"in round {round} with {submodel}"
    if "out of memory" in reason or "MemoryError" in reason:
        setback = Setback(submodel, "memory", round, f"ran out of memory {where}")
    else:
        setback = Setback(submodel, "failed", round, f"failed {where}: {reason[:120]}")
    return add_setback(standing, setback)


def add_setback(standing: Standing, setback: Setback) -> Standing:
    """Add a setback. Each further one at the same submodel doubles the rounds until a retry."""
    others = tuple(one for one in standing.setbacks if one.submodel != setback.submodel)
    before = sum(one.times for one in standing.setbacks if one not in others)
    proofs = PROOF * 2 ** min(before, MAX_DOUBLINGS)
    return replace(standing, setbacks=(*others, replace(setback, times=before + 1, proofs=proofs)))
