"""`python -m benchmarks bitflips`: one random bit flips in the files of an interrupted run.

Each run is the same fleet in virtual time. Its coordinator is killed in the middle of a round and
leaves its files as a killed process does. A bit flips, `coordinator check` reads a copy, and the
production code resumes the run; where it refuses, `coordinator check --repair` comes first.
"""

from __future__ import annotations

import logging
import random
import re
import secrets
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.live_rows import Span, find_rows
from benchmarks.replay import ReplayResult, replay
from benchmarks.schedules.device import RUN
from benchmarks.schedules.faults import COORDINATOR, Schedule
from benchmarks.schedules.oracle import Oracle, Struck
from benchmarks.schedules.task_runner import learn
from benchmarks.schedules.trial import Trial
from benchmarks.schedules.world import Killed, Process
from coordinator.fleet.fleet import Fleet
from coordinator.store.file_digests import digest_of
from coordinator.views.run_check import check_folder, check_run
from federated.errors import StoreError
from federated.runtime.console import FORMAT, print_result, report_errors, speaker

__all__ = ["CORE", "KINDS", "Flip", "Outcome", "command", "find_stops", "has_failed", "try_flip"]

CORE = "checkpoint", "snapshot", "spool", "row"  # damage of these must be found
KINDS = *CORE, "other"
ROUNDS = 4
SETTINGS: Mapping[str, Any] = {
    "method.name": "heterofl",
    "rounds": ROUNDS,
    "journal.every": 2,
    "evaluate.every": 1,
    "evaluate.local": True,
    "fleet.min_agents": 5,
}
SCHEDULE = Schedule(0, {f"a{index}": 2.0 + index for index in range(5)}, SETTINGS)
EARLY = 520  # action before which the first coordinator dies, so that the second one resumes
STOPS = 12  # instants at which runs are interrupted
CHECKPOINTS = "round-*.safetensors"
DAMAGE = re.compile("damaged|discard|dropped the last|missing|cannot read|wrong digest|differ")


@dataclass(frozen=True)
class Flip:
    """A flip. seed: of the chosen bit; kind: one of KINDS; stop: action before which the
    coordinator dies.
    """

    seed: int
    kind: str
    stop: int


@dataclass
class Outcome:
    """Outcome of a flip.

    file: with the flipped bit, and its position
    checked: `coordinator check` reported it
    told: the resumed coordinator reported or refused it
    refused: the run could not be resumed, also after a repair
    finished: all rounds are complete
    same: the last checkpoint equals that of the undamaged run
    sound: the last checkpoint equals the honest updates, folded again, each of them once
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


class Refusal(Exception):
    """The run cannot be resumed or repaired."""


class Dying(Process):
    """Coordinator whose files are copied at its death, as a killed process leaves them.

    watch: called before each action
    """

    def __init__(self, runs: Path, copy: Path, watch: Callable[[int], object]) -> None:
        super().__init__(COORDINATOR)
        self._runs, self._copy, self._watch = runs, copy, watch

    def pulse(self) -> None:
        if not self.dead:
            self._watch(self.pulses + 1)
        was_dead = self.dead
        try:
            super().pulse()
        except Killed:
            if not was_dead:
                shutil.rmtree(self._copy, ignore_errors=True)
                shutil.copytree(self._runs, self._copy)
            raise


class Witness(Oracle):
    """Observer that only repeats the run at its end: damaged files are expected."""

    result: ReplayResult | None = None

    def check_death(self, fleet: Fleet) -> None:
        pass

    def check_kept(self, *, damaged: bool) -> None:
        pass

    def check_end(self, honest: Set[str], struck: Struck, repeated: Sequence[str]) -> ReplayResult:
        self.result = replay(self.runs, self.run, make=learn)
        return self.result


class Interrupted(Trial):
    """The schedule, with a coordinator that dies twice, and damage after its second death."""

    def __init__(
        self,
        folder: Path,
        stop: int,
        damage: Callable[[Path], object],
        watch: Callable[[int], object] = lambda at: None,
    ) -> None:
        """damage: called with the run's folder before the coordinator restarts."""
        (folder / "trial").mkdir()
        super().__init__(SCHEDULE, folder / "trial", self._hear)
        self._copy, self._damage = folder / "copy", damage
        self.runs = self.folder / "runs"
        self.oracle = self.witness = Witness(self.runs, RUN, lambda why: None)
        self.coordinator = Dying(self.runs, self._copy, watch)
        self.coordinator.fuses = {EARLY: lambda: None}
        if stop:
            self.coordinator.fuses[stop] = self._restore
        self.refused = ""

    def _hear(self, at: float, event: object) -> None:
        if isinstance(event, StoreError):
            self.refused = str(event)

    def _restore(self) -> None:
        """Put back the files as they were at the death, and damage them."""
        shutil.rmtree(self.runs)
        shutil.copytree(self._copy, self.runs)
        self._damage(self.runs / RUN)

    def _life(self) -> bool:
        before, self.refused = self.refused, ""
        done = super()._life()
        if self.refused:
            found = check_run(RUN, self.runs, repair=True)
            left = [one for one in found["damaged"] if not one["repaired"]]
            if before or left or not found["damaged"]:
                raise Refusal(self.refused)
        return done


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
        trial = Interrupted(folder, flip.stop, damage)
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
            outcome.sound = result.equal and not result.doubled and folded == [everyone] * ROUNDS
            outcome.same = last_digest(trial) == reference
    return outcome


def last_digest(trial: Interrupted) -> str:
    """Return the sha256 of the last checkpoint."""
    return digest_of(max((trial.runs / RUN).glob(CHECKPOINTS)))


def run_undamaged(stop: int) -> str:
    """Return the sha256 of the last checkpoint of a run that is interrupted and resumed."""
    with listening(logging.NullHandler()), scratch() as folder:
        trial = Interrupted(folder, stop, lambda folder: None)
        assert trial.run().finished, "an undamaged run finishes"
        return last_digest(trial)


def find_stops() -> list[int]:
    """Return the actions of the coordinator at which all kinds of files lie in the run's folder."""
    found = list[int]()

    def watch(at: int) -> None:
        run = folder / "trial" / "runs" / RUN
        if (
            len(list(run.glob(CHECKPOINTS))) == 2
            and any(run.glob("total-*.safetensors"))
            and any(run.glob("spool/round-*/*.update"))
            and any(run.glob("*-wal"))
        ):
            found.append(at)

    with listening(logging.NullHandler()), scratch() as folder:
        Interrupted(folder, 0, lambda folder: None, watch).run()
    return found


@contextmanager
def listening(handler: logging.Handler) -> Iterator[None]:
    """Send the log to this handler alone, and use one thread."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ResourceWarning)  # killed processes close nothing
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers = before
        root.setLevel(level)


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        prefix="espalier-bitflips-", dir=memory(), ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def memory() -> str | None:
    """Return a folder in memory, if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108


# ---- all flips -----------------------------------------------------------------------------------


def draw_flips(count: int, seed: int, stops: Sequence[int]) -> list[Flip]:
    """Return flips: four of five in what must be found."""
    rng = random.Random(seed)  # noqa: S311  # repeatable, not secret
    chosen = rng.sample(stops, min(STOPS, len(stops)))
    return [
        Flip(rng.randrange(2**32), KINDS[number % len(KINDS)], rng.choice(chosen))
        for number in range(count)
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
    """Return whether damage was trained on, crashed or stalled a run, or was missed."""
    return any(found[name] for name in ("trained_on", "crashed", "stalled", "missed"))


def run_job(job: tuple[Flip, str]) -> Outcome:
    return try_flip(*job)


@click.command("bitflips")
@click.option(
    "--count", type=click.IntRange(min=1), default=200, show_default=True, help="number of flips"
)
@click.option(
    "--seed", type=click.IntRange(min=0), help="of the flips  [default: random and printed]"
)
@click.option(
    "--beside", type=click.IntRange(min=1), default=2, show_default=True, help="number of processes"
)
@FORMAT
def command(count: int, seed: int | None, beside: int, form: str) -> None:
    """Flip one bit at a time in the files of an interrupted run, and resume it.

    Check that damage of checkpoints, snapshots, received updates and database rows is found, and
    that no damage is trained on.
    """
    with report_errors("python -m benchmarks bitflips", "coordinator", "interrupted"):
        say = speaker(form)
        seed = secrets.randbelow(2**31) if seed is None else seed
        flips = draw_flips(count, seed, find_stops())
        say(f"seed {seed}, {count} flips")
        with ProcessPoolExecutor(beside) as pool:
            stops = sorted({flip.stop for flip in flips})
            undamaged = dict(zip(stops, pool.map(run_undamaged, stops), strict=True))
            outcomes = list(pool.map(run_job, [(flip, undamaged[flip.stop]) for flip in flips]))
        for one in outcomes:
            if one.verdict not in ("found", "equal") or (
                one.verdict == "equal" and one.flip.kind in CORE
            ):
                say(f"{one.verdict}: {one.flip}, {one.file}: {one.crashed or one.said}")
        found = summarise(outcomes)
        for kind, counts in found["by_kind"].items():
            say(f"{kind:12}" + "".join(f"{name} {many:4}  " for name, many in counts.items()))
        print_result({"seed": seed, **found}, form)
        if has_failed(found):
            sys.exit(1)
