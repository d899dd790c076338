"""Try one bit flip: choose and flip the bit, check and resume the run, and judge what happened."""

from __future__ import annotations

import logging
import random
import re
import shutil
import tempfile
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bitflips.interrupted_run import (
    CHECKPOINTS,
    PARTS,
    ROUNDS,
    SCHEDULE,
    Interrupted,
    Refusal,
    listening,
    memory,
    scratch,
)
from benchmarks.bitflips.sqlite_row_bytes import Span, find_rows
from benchmarks.fault_schedules.virtual_agent import RUN
from coordinator.views.run_damage_check import check_folder, check_run
from federated.runtime.atomic_files import sha256

__all__ = ["CORE", "KINDS", "Flip", "Outcome", "run_undamaged", "try_flip"]

CORE = "checkpoint", "snapshot", "spool", "row", "kept"  # damage of these must be found
KINDS = *CORE, "other"
DAMAGE = re.compile("damaged|discard|dropped the last|missing|cannot read|wrong digest|differ")


@dataclass(frozen=True)
class Flip:
    """A flip. seed: of the chosen bit; kind: one of KINDS; stop: action before which the
    coordinator dies, or the bit flips in a file kept for a robust rule.
    """

    seed: int
    kind: str
    stop: int

    @property
    def ruled(self) -> bool:
        """True if the run has a robust rule."""
        return self.kind == "kept"


@dataclass
class Outcome:
    """Outcome of a flip.

    file: with the flipped bit, and its position
    checked: `coordinator check` reported it
    told: the resumed coordinator reported or refused it
    refused: the run could not be resumed, also after a repair
    finished: all rounds are complete
    same: the last checkpoint equals that of the undamaged run
    sound: the last checkpoint equals the honest updates, folded again, each of them once; with a
        robust rule, that of the undamaged run
    crashed: unexpected error
    """

    flip: Flip
    file: str = ""
    checked: bool = False
    told: bool = False
    refused: bool = False
    finished: bool = False
    same: bool = False
    sound: bool = False
    crashed: str = ""
    said: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Return `found`, `equal`, `trained_on`, `crashed` or `stalled`."""
        found = self.checked or self.told
        if self.crashed:
            return "crashed"
        if self.finished and not (self.sound and (found or self.same)):
            return "trained_on"
        if not self.finished and not self.refused:
            return "stalled"
        return "found" if found else "equal"


# ---- what is damaged -----------------------------------------------------------------------------


def find_targets(folder: Path, kind: str, checked: Set[str]) -> list[Span]:
    """Return the bytes of a run's files of a kind. checked: files with a digest."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    checkpoints = list(folder.glob(CHECKPOINTS))
    snapshots = list(folder.glob("total-*.safetensors"))
    spooled = [path for path in files if str(path.relative_to(folder)) in checked]
    spooled = [path for path in spooled if path.suffix == ".update"]
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
    listed = frozenset(spooled_updates(folder))
    targets = find_targets(folder, outcome.flip.kind, listed)
    if outcome.flip.kind == "row":  # each byte alike; otherwise each file
        (span,) = rng.choices(targets, [one.end - one.start for one in targets])
    else:
        span = rng.choice(targets)
    at, bit = rng.randrange(span.start, span.end), rng.randrange(8)
    data = bytearray(span.path.read_bytes())
    data[at] ^= 1 << bit
    span.path.write_bytes(data)
    outcome.file = f"{span.path.relative_to(folder)} byte {at} bit {bit}"
    if outcome.flip.ruled:
        return  # `check` does not know these files
    with copied(folder) as copy:
        damaged = check_run(RUN, copy, repair=False)["damaged"]
    outcome.checked = bool(damaged)
    outcome.said += [f"check: {one['file']} {one['problem']}" for one in damaged]


def spooled_updates(folder: Path) -> Iterator[str]:
    """Yield the complete updates in the spool that the journal knows."""
    with copied(folder) as copy:
        yield from (one.file for one in check_folder(copy / RUN))


@contextmanager
def copied(folder: Path) -> Iterator[Path]:
    """Yield a folder with a copy of the run; SQLite changes the files that it reads."""
    with tempfile.TemporaryDirectory(prefix="espalier-check-", dir=memory()) as made:
        shutil.copytree(folder, Path(made) / RUN)
        yield Path(made)


# ---- one flip ------------------------------------------------------------------------------------


class Listener(logging.Handler):
    """Collects what the program says about damage."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(logging.INFO)
        self._outcome, self.armed = outcome, False

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self.armed and DAMAGE.search(text):
            self._outcome.told = True
            self._outcome.said.append(text)


def try_flip(flip: Flip, reference: str = "") -> Outcome:
    """Run the fleet with one flip, and return its outcome. reference: sha256 of the last checkpoint
    of the undamaged run.
    """
    outcome = Outcome(flip)
    listener = Listener(outcome)

    def damage(folder: Path) -> None:
        flip_bit(outcome, folder)
        listener.armed = True

    with listening(listener), scratch() as folder:
        trial = Interrupted(folder, flip.stop, damage, ruled=flip.ruled)
        try:
            outcome.finished = trial.run().finished
        except Refusal as error:
            outcome.told = outcome.refused = True
            outcome.said.append(str(error))
        except Exception as error:  # the defect to report
            outcome.crashed = f"{type(error).__name__}: {error}"
        if outcome.finished:
            result = trial.witness.result
            assert result is not None, "the run is finished"
            everyone = set(SCHEDULE.paces)
            folded = [set(result.folded[number]) for number in range(1, ROUNDS + 1)]
            outcome.same = last_digest(trial) == reference
            equal = outcome.same if flip.ruled else result.equal
            outcome.sound = equal and not result.doubled and folded == [everyone] * ROUNDS
    return outcome


def last_digest(trial: Interrupted) -> str:
    """Return the sha256 of the last checkpoint."""
    return sha256(max((trial.runs / RUN).glob(CHECKPOINTS)))


def run_undamaged(stop: int, *, ruled: bool = False) -> str:
    """Return the sha256 of the last checkpoint of a run that is interrupted and resumed. It must
    report no damage, so that what a damaged run reports comes from the damage. ruled: use a robust
    rule.
    """
    outcome = Outcome(Flip(0, "other", stop))
    listener = Listener(outcome)
    listener.armed = True
    with listening(listener), scratch() as folder:
        trial = Interrupted(folder, stop, lambda folder: None, ruled=ruled)
        assert trial.run().finished, "an undamaged run finishes"
        assert not outcome.told, outcome.said
        return last_digest(trial)
