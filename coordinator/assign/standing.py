"""What real rounds have shown of an agent: how far its predictions were off, and what it could not
do. Frozen records, folded by pure functions.

A setback (an update that came too late, memory that ran out) keeps the agent below the submodel it
happened at until it has ended `PROOF` rounds in time; each further one at the same submodel doubles
that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal

import msgspec

from federated.task import Profile

__all__ = [
    "CALM",
    "FIRST",
    "JUMP",
    "LATER",
    "PROOF",
    "Observed",
    "Setback",
    "Standing",
    "active",
    "failed",
    "in_time",
    "late",
    "learned",
    "measured_anew",
    "waited",
]

# weight of a measurement in the moving average: of the first, beside the prediction, and of later
# ones
FIRST, LATER = 0.5, 0.3
# weight of a later measurement in what sets the fleet's pace: one slow round of its quickest device
# must not move all the others
CALM = 0.1
# times off: so far from the average, a measurement takes its place, since the device is not what it
# was
JUMP = 1.5
PROOF = 3  # rounds in time after a setback until the submodel is tried again
DOUBLINGS = 5  # at most, of the proof
# seconds in which an answer says nothing of the link's rate: most of them are turns of loops
BRIEF = 1.0
# predicted bytes below which a peak says little: allocators and libraries take as much
LARGE = 64e6
MEMORY = (0.5, 4.0)  # what measured over predicted memory may come to

Kind = Literal["late", "memory", "failed"]


@dataclass(frozen=True)
class Observed:
    """One training as it was. predicted_step, predicted_memory: by the profile alone, seconds and
    bytes.

    step, seconds, peak: as the device said, 0 where it did not. steps: taken. settled: seconds from
    task to acceptance, by the coordinator's clock. bytes: down and up together.
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
    """What an agent could not do. submodel: by name. round: when last. times: in all. proofs:
    rounds in time that are still to come.

    share: of the submodel's predicted seconds, what the agent must stay below after several late
    rounds in a row. words: for people.
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
    """How an agent stands.

    basis: digest of the timings that its predictions start from; with others, all but what memory
    and failures have shown starts anew. trained: measured trainings. step, memory: measured over
    predicted, moving averages. rate: bytes per second of its transfers, 0: as its profile says.
    extra: seconds of a training besides its steps, at the speed that the profile says. misses: late
    rounds in a row. setbacks: the latest last. usual: as step, but slow to rise: what sets the pace
    of others.
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


def measured_anew(standing: Standing, profile: Profile) -> Standing:
    """The same while the agent's timings are; else one without what times have shown: they are
    measured now, memory is not.
    """
    basis = sha256(msgspec.json.encode(profile.timings)).hexdigest()[:16]
    if standing.basis == basis:
        return standing
    return Standing(
        basis,
        memory=standing.memory,
        setbacks=tuple(one for one in standing.setbacks if one.kind != "late"),
    )


def learned(standing: Standing, seen: Observed) -> Standing:
    """After a training whose device said what it took; unchanged where it did not, as simulated
    ones do not.
    """
    if not seen.seconds:
        return standing
    weight = LATER if standing.trained else FIRST
    off = seen.step / seen.predicted_step if seen.step and seen.predicted_step else standing.step
    extra = max(0.0, seen.seconds - seen.steps * seen.step) / off if seen.step else standing.extra
    step = averaged(standing.step, off, weight)
    return replace(
        standing,
        trained=standing.trained + 1,
        step=step,
        usual=min(
            step, standing.usual + (CALM if standing.trained else FIRST) * (off - standing.usual)
        ),
        memory=memory_after(standing.memory, seen),
        rate=rate_after(standing.rate, seen),
        # a first training warms up
        extra=min(extra, standing.extra + LATER * (extra - standing.extra))
        if standing.trained
        else extra,
    )


def averaged(before: float, found: float, weight: float) -> float:
    """The moving average; what is far off replaces it."""
    return (
        found if not before / JUMP <= found <= before * JUMP else before + weight * (found - before)
    )


def memory_after(before: float, seen: Observed) -> float:
    if not seen.peak or seen.predicted_memory < LARGE:
        return before
    return min(
        max(before + LATER * (seen.peak / seen.predicted_memory - before), MEMORY[0]), MEMORY[1]
    )


def rate_after(before: float, seen: Observed) -> float:
    """The link's bytes per second, from what of the round was no training."""
    seconds = seen.settled - seen.seconds
    if seconds < BRIEF:
        return max(before, seen.bytes / BRIEF) if before else 0.0  # at least so quick
    found = seen.bytes / seconds
    return averaged(before, found, LATER) if before else found


# ---- what went well or not -----------------------------------------------------------------------


def active(standing: Standing) -> list[Setback]:
    """The setbacks that still keep the agent below something."""
    return [one for one in standing.setbacks if one.proofs > 0]


def in_time(standing: Standing, above: Sequence[str] = ()) -> Standing:
    """After a round ended in time: nearer to the submodel of its latest setback; those are
    forgotten at which, or above which, it did well.

    above: the names of the submodels that are no larger than the one it did.
    """
    kept = tuple(one for one in standing.setbacks if one.submodel not in above)
    return replace(waited(replace(standing, setbacks=kept)), misses=0)


def waited(standing: Standing) -> Standing:
    """A round nearer to being tried again with what it failed at last; one setback after the
    other.
    """
    going = active(standing)
    if not going:
        return standing
    latest = going[-1]
    nearer = replace(latest, proofs=latest.proofs - 1)
    return replace(
        standing, setbacks=tuple(nearer if one is latest else one for one in standing.setbacks)
    )


def late(
    standing: Standing, submodel: str, round: int, elapsed: float, predicted: float
) -> Standing:
    """After an update that had not come in `elapsed` seconds, where `predicted` were expected.
    Several in a row halve what the next may take.
    """
    times_off = max(1.0, elapsed / predicted) if predicted > 0 else 1.0
    made = Setback(
        submodel,
        "late",
        round,
        f"was late in round {round} with {submodel}",
        share=0.5**standing.misses,
    )
    return replace(
        with_setback(standing, made), misses=standing.misses + 1, step=standing.step * times_off
    )


def failed(standing: Standing, submodel: str, round: int, reason: str) -> Standing:
    """After a training that came to nothing."""
    if "out of memory" in reason or "MemoryError" in reason:
        return with_setback(
            standing,
            Setback(
                submodel, "memory", round, f"ran out of memory in round {round} with {submodel}"
            ),
        )
    return with_setback(
        standing,
        Setback(
            submodel, "failed", round, f"failed in round {round} with {submodel}: {reason[:120]}"
        ),
    )


def with_setback(standing: Standing, made: Setback) -> Standing:
    """One more at its submodel: the wait doubles."""
    before = next((one.times for one in standing.setbacks if one.submodel == made.submodel), 0)
    made = replace(made, times=before + 1, proofs=PROOF * 2 ** min(before, DOUBLINGS))
    return replace(
        standing,
        setbacks=(*(one for one in standing.setbacks if one.submodel != made.submodel), made),
    )
