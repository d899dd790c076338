"""What a device answers with: one session at a time, exchanged for another while requests go on. No
torch here.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

from edge_agent.infer import remembered
from edge_agent.infer.answers import Answer, answer
from edge_agent.infer.graph_choice import Choice, choose, own_sample, thread_counts
from edge_agent.infer.inputs import shaped
from edge_agent.infer.trial import CPU, Held, Trial, gauge
from export.bundle import version as version_of
from export.verify import Array, Session, load, sha256
from federated.errors import DataError, EspalierError, ExportError, StoreError

__all__ = ["Answered", "Counts", "Engine", "Past"]

log = logging.getLogger(__name__)

FILE = "file"  # the kind of a graph that comes without a manifest


@dataclass(frozen=True)
class Past:
    """What was in use before, measured beside the present: its p90 (seconds) and its accuracy on
    this device's own examples, None without.
    """

    version: str
    p90: float
    accuracy: float | None


@dataclass(frozen=True)
class Answered:
    """Answers, and what gave them."""

    choice: Choice
    answers: list[Answer]


@dataclass(frozen=True)
class Counts:
    """Examples answered; and questions that could not be, through no fault of whoever asked."""

    answered: int = 0
    failed: int = 0


@dataclass(frozen=True)
class _Present:
    session: Session
    choice: Choice
    past: Past | None = None


@dataclass
class _Tally:
    answered: int = 0
    failed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Engine:
    """Answers with the present release. Thread-safe: whoever asked before an exchange gets the
    answer of what was there before.
    """

    def __init__(self, store: Path | None, *, threads: int = 0, held: Held | None = None) -> None:
        """store: the folder where it remembers what is in use, for `resume`; None: nowhere.
        threads: of one run, 0 for what is fastest.

        held: this device's own examples. Raises DataError for unfit ones.
        """
        self._store, self._threads = store, threads
        self._held = None if held is None else own_sample(held)
        self._present: _Present | None = None
        self._exchange = threading.Lock()
        self._tally = _Tally()

    @property
    def choice(self) -> Choice | None:
        """What answers at present."""
        return self._present.choice if self._present else None

    @property
    def past(self) -> Past | None:
        """What answered before, measured when the present one came."""
        return self._present.past if self._present else None

    @property
    def session(self) -> Session | None:
        """What answers at present, to read inputs for it."""
        return self._present.session if self._present else None

    @property
    def counts(self) -> Counts:
        """Since this engine was made."""
        with self._tally.lock:
            return Counts(self._tally.answered, self._tally.failed)

    def adopt(self, folder: Path, submodel: str, version: str = "") -> Choice:
        """Tests a release, measures how it runs best here, and answers with it from then on.

        version: which one it must be; empty: whichever it is.
        Raises ExportError, DataError, Unknown or StoreError, and goes on with the present one.
        """
        with self._exchange:
            found = version_of(folder)
            if version and found != version:
                raise ExportError(f"{folder}: expected version {version}, found {found}")
            present = self._present
            if present is not None and (present.choice.version, present.choice.submodel) == (
                found,
                submodel,
            ):
                return present.choice
            with remembered.trying(self._store, found) if self._store else contextlib.nullcontext():
                session, choice = self._chosen(folder, submodel, found)
                choice, past = self._beside(session, choice, present)
            if self._store is not None:
                self._remember(self._store, folder, choice)
            # one assignment: a question sees the old one or the new one, whole
            self._present = _Present(session, choice, past)
            return choice

    def open(self, path: Path, digest: str | None = None) -> Choice:
        """Answers with a single graph, which comes without a test and without other variants.
        Raises ExportError.
        """
        with self._exchange:
            count = thread_counts(self._threads)[-1]
            session = load(path, digest, threads=count)
            data, trial = session.metadata, Trial(FILE, CPU, count)
            number = int(data["round"]) if data["round"].isdecimal() else 0
            choice = Choice(
                sha256(path)[:12], data["run"], number, data["submodel"], trial, trials=(trial,)
            )
            self._present = _Present(session, choice)
            return choice

    def resume(self) -> Choice | None:
        """Goes on with what was in use when the last process ended, or with the last good one
        before; None where nothing was.

        Raises ExportError where none of them is right any more.
        """
        if self._store is None:
            return None
        reasons = list[str]()
        for place in remembered.places(self._store):
            try:
                return self.adopt(self._store / place.folder, place.submodel, place.version)
            except EspalierError as error:
                log.warning("version %s cannot be resumed: %s", place.version, error)
                reasons.append(str(error))
        if reasons:
            raise ExportError(
                f"{self._store}: nothing that was in use can be resumed: {'; '.join(reasons)}"
            )
        return None

    def answer(self, value: Array, name: str = "the question", most: int | None = None) -> Answered:
        """Answers for raw examples, [n, *inputs], or one without its first axis. most: how many at
        most.

        Raises DataError for what is no such example, ExportError while there is no release, and
        where the present one fails.
        """
        present = self._present
        if present is None:
            raise ExportError("no release has arrived yet")
        x = shaped(value, present.session, name)
        if most is not None and len(x) > most:
            raise DataError(f"{name}: expected at most {most} examples at a time, found {len(x)}")
        try:
            found = answer(present.session, x, present.choice.classes)
        except DataError as error:  # whoever asks is not told where files lie here
            raise DataError(str(error).replace(present.session.name, name)) from error
        except Exception as error:  # the runtime's own share no base class
            self._count(failed=1)
            said = " ".join(str(error).split()).replace(
                present.session.name, Path(present.session.name).name
            )
            raise ExportError(f"version {present.choice.version} failed: {said[:300]}") from error
        self._count(answered=len(found))
        return Answered(present.choice, found)

    def close(self) -> None:
        """To be called before an orderly end, which may interrupt a test."""
        if self._store is not None:
            remembered.untried(self._store)

    def _count(self, answered: int = 0, failed: int = 0) -> None:
        with self._tally.lock:
            self._tally.answered += answered
            self._tally.failed += failed

    def _remember(self, store: Path, folder: Path, choice: Choice) -> None:
        """Raises StoreError where that fails, but not while nothing answers: to answer until the
        next restart is better than not at all.
        """
        try:
            remembered.remember(store, folder, choice.submodel, choice.version)
        except StoreError as error:
            if self._present is not None:
                raise
            log.warning("version %s answers, but is not remembered: %s", choice.version, error)

    def _chosen(self, folder: Path, submodel: str, version: str) -> tuple[Session, Choice]:
        """The way that was fastest here before, tested again; or all ways, measured."""
        before = remembered.known(version, submodel, self._threads, self._held)
        session, choice = choose(
            folder, submodel, version, threads=self._threads, held=self._held, before=before
        )
        if choice != before and not choice.busy:  # timings beside other work are not kept
            remembered.note(choice, self._threads, self._held)
        return session, choice

    def _beside(
        self, session: Session, choice: Choice, present: _Present | None
    ) -> tuple[Choice, Past | None]:
        """The choice with its latency as it is now, and what it replaces, measured next to it:
        minutes later the machine may be another.
        """
        if present is None or (present.session.inputs, present.session.dtype) != (
            session.inputs,
            session.dtype,
        ):
            return choice, None
        old, accuracy = gauge(present.session, self._held)
        new, own = gauge(session, self._held)
        best = replace(choice.best, p50=new.p50, p90=new.p90, runs=new.runs, accuracy=own)
        trials = tuple(best if trial == choice.best else trial for trial in choice.trials)
        return replace(choice, best=best, trials=trials), Past(
            present.choice.version, old.p90, accuracy
        )
