"""Try one bit flip: choose and flip the bit, check and resume the run, and judge what happened."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bitflips.interrupted_run import (
    CHECKPOINTS,
    PARTS,
    ROUNDS,
    SCHEDULE,
    SNAPSHOTS,
    Interrupted,
    Refusal,
    capture_log,
    copy_run,
    list_checked_files,
    open_scratch_folder,
)
from benchmarks.bitflips.sqlite_row_bytes import Span, find_rows
from benchmarks.fault_schedules.virtual_agent import RUN
from coordinator.views.run_damage_check import check_run
from federated.runtime.atomic_files import sha256

__all__ = ["CORE", "KINDS", "Flip", "Outcome", "run_undamaged", "try_flip"]

CORE = "checkpoint", "snapshot", "spool", "row", "kept"  # damage of these must be found
KINDS = *CORE, "other"
DAMAGE = re.compile("damaged|discard|dropped the last|missing|cannot read|wrong digest|differ")


@dataclass(frozen=True)
class Flip:
    """A bit to flip.

    seed: selects the bit.
    kind: one of KINDS.
    stop: number of the coordinator's action before which the bit flips. The coordinator is killed
        there, except if `kind` is "kept": it then keeps running.
    """

    seed: int
    kind: str
    stop: int

    @property
    def robust(self) -> bool:
        """True if the run has a robust rule."""
        return self.kind == "kept"


@dataclass
class Outcome:
    """Outcome of a flip.

    file: with the flipped bit, and its position
    checked: `coordinator check` reported it
    reported: the resumed coordinator reported it, or refused to resume
    refused: the run could not be resumed, also after a repair
    finished: all rounds are complete
    same: the last checkpoint equals that of the undamaged run
    sound: the last checkpoint equals a recomputation that folds each update once; with a robust
        rule, it equals that of the undamaged run
    crashed: unexpected error
    messages: what `coordinator check` and the resumed coordinator wrote about damage
    """

    flip: Flip
    file: str = ""
    checked: bool = False
    reported: bool = False
    refused: bool = False
    finished: bool = False
    same: bool = False
    sound: bool = False
    crashed: str = ""
    messages: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The result in one word.

        found: the damage was reported, and no damaged weights were trained.
        equal: it was not reported, and the run ended as without it.
        trained_on: the run ended with other weights.
        crashed, stalled: the run did not end.
        """
        found = self.checked or self.reported
        if self.crashed:
            return "crashed"
        if self.finished and not (self.sound and (found or self.same)):
            return "trained_on"
        if not self.finished and not self.refused:
            return "stalled"
        return "found" if found else "equal"


# ---- what is damaged -----------------------------------------------------------------------------


def find_targets(folder: Path, kind: str, checked: Set[str]) -> list[Span]:
    """Return the bytes among which a flip of this kind is drawn. checked: files whose digest is
    recorded.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    checkpoints = list(folder.glob(CHECKPOINTS))
    known = [path for path in files if str(path.relative_to(folder)) in checked]
    snapshots = [path for path in known if path.match(SNAPSHOTS)]
    spooled = [path for path in known if path.suffix == ".update"]
    match kind:
        case "checkpoint":
            chosen = checkpoints
        case "snapshot":
            chosen = snapshots
        case "spool":
            chosen = spooled
        case "row":
            return find_rows(folder / "run.sqlite")
        case "kept":
            chosen = list(folder.glob(PARTS))
        case _:
            chosen = [path for path in files if path not in {*checkpoints, *snapshots, *spooled}]
    return [Span(path, 0, path.stat().st_size) for path in sorted(chosen)]


def flip_bit(outcome: Outcome, folder: Path) -> None:
    """Flip a random bit of the kind that the flip names, and check a copy of the run."""
    rng = random.Random(outcome.flip.seed)  # noqa: S311  # repeatable, not secret
    listed = frozenset(list_checked_files(folder))
    targets = find_targets(folder, outcome.flip.kind, listed)
    if outcome.flip.kind == "row":  # each byte is equally likely; otherwise each file
        (span,) = rng.choices(targets, [one.end - one.start for one in targets])
    else:
        span = rng.choice(targets)
    at, bit = rng.randrange(span.start, span.end), rng.randrange(8)
    data = bytearray(span.path.read_bytes())
    data[at] ^= 1 << bit
    span.path.write_bytes(data)
    outcome.file = f"{span.path.relative_to(folder)} byte {at} bit {bit}"
    if outcome.flip.robust:
        return  # `check` does not know these files
    with copy_run(folder) as copy:
        damaged = check_run(RUN, copy, repair=False)["damaged"]
    outcome.checked = bool(damaged)
    outcome.messages += [f"check: {one['file']} {one['problem']}" for one in damaged]


# ---- one flip ------------------------------------------------------------------------------------


class Listener(logging.Handler):
    """Collects log messages about damage, once it is armed."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(logging.INFO)
        self._outcome, self.armed = outcome, False

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self.armed and DAMAGE.search(text):
            self._outcome.reported = True
            self._outcome.messages.append(text)


def try_flip(flip: Flip, reference: str = "") -> Outcome:
    """Run the fleet with one flip, and return its outcome. reference: sha256 of the last checkpoint
    of the undamaged run.
    """
    outcome = Outcome(flip)
    listener = Listener(outcome)

    def damage(folder: Path) -> None:
        flip_bit(outcome, folder)
        listener.armed = True

    with capture_log(listener), open_scratch_folder() as folder:
        trial = Interrupted(folder, flip.stop, damage, robust=flip.robust)
        try:
            outcome.finished = trial.run().finished
        except Refusal as error:
            outcome.reported = outcome.refused = True
            outcome.messages.append(str(error))
        except Exception as error:  # the defect to report
            outcome.crashed = f"{type(error).__name__}: {error}"
        if outcome.finished:
            result = trial.witness.result
            assert result is not None, "the run is finished"
            everyone = set(SCHEDULE.paces)
            folded = [set(result.folded[number]) for number in range(1, ROUNDS + 1)]
            outcome.same = last_digest(trial) == reference
            equal = outcome.same if flip.robust else result.equal
            outcome.sound = equal and not result.doubled and folded == [everyone] * ROUNDS
    return outcome


def last_digest(trial: Interrupted) -> str:
    """Return the sha256 of the last checkpoint."""
    return sha256(max((trial.runs / RUN).glob(CHECKPOINTS)))


def run_undamaged(stop: int, *, robust: bool = False) -> str:
    """Return the sha256 of the last checkpoint of a run that is interrupted and resumed. It must
    report no damage, or the reports of damaged runs would prove nothing. robust: use a robust rule.
    """
    outcome = Outcome(Flip(0, "other", stop))
    listener = Listener(outcome)
    listener.armed = True
    with capture_log(listener), open_scratch_folder() as folder:
        trial = Interrupted(folder, stop, lambda folder: None, robust=robust)
        assert trial.run().finished, "an undamaged run finishes"
        assert not outcome.reported, outcome.messages
        return last_digest(trial)
