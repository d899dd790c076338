"""Answer inference requests with the network in use, which can be replaced while requests run. Does
not import torch.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from edge_agent.infer import release_state
from edge_agent.infer.answer_conversion import Answer, answer
from edge_agent.infer.graph_choice import Choice, choose, list_thread_counts, sample_own
from edge_agent.infer.graph_trial import CPU, Held, Trial, measure_session
from edge_agent.infer.inputs import fit_shape
from export.onnx_session import Array, Session, load
from export.release_reader import read_version
from federated.errors import DataError, EspalierError, ExportError, StoreError
from federated.runtime.atomic_files import sha256

__all__ = ["Answered", "Counts", "Engine", "Past"]

log = logging.getLogger(__name__)

FILE = "file"  # kind of a graph without a manifest


@dataclass(frozen=True)
class Past:
    """The release in use before, measured next to the present one.

    version: version of the release
    p90: seconds
    accuracy: on this device's own examples, or None
    """

    version: str
    p90: float
    accuracy: float | None


@dataclass(frozen=True)
class Answered:
    """Answers, and the choice that produced them."""

    choice: Choice
    answers: list[Answer]


@dataclass(frozen=True)
class Counts:
    """Counts of requests.

    answered: examples answered
    failed: requests that failed through no fault of the client
    """

    answered: int = 0
    failed: int = 0


@dataclass(frozen=True)
class _Present:
    session: Session
    choice: Choice
    past: Past | None = None


class Engine:
    """Answer with the present release. Thread-safe: a request that began before an exchange is
    answered by the earlier release.
    """

    def __init__(self, store: Path | None, *, threads: int = 0, held: Held | None = None) -> None:
        """Make an engine without a release.

        store: folder that records the release in use, for `resume`; None to record nothing
        threads: threads of one run, 0 for the fastest number
        held: this device's own examples
        DataError: the examples do not fit.
        """
        self._store, self._threads = store, threads
        self._held = None if held is None else sample_own(held)
        self._present: _Present | None = None
        self._exchange = threading.Lock()
        self._counts, self._counting = Counts(), threading.Lock()

    @property
    def choice(self) -> Choice | None:
        """The choice in use."""
        return self._present.choice if self._present else None

    @property
    def past(self) -> Past | None:
        """The release in use before, measured when the present one was adopted."""
        return self._present.past if self._present else None

    @property
    def session(self) -> Session | None:
        """The session in use, for reading inputs."""
        return self._present.session if self._present else None

    @property
    def counts(self) -> Counts:
        """Counts since this engine was made."""
        return self._counts

    def adopt(self, folder: Path, submodel: str, version: str = "") -> Choice:
        """Test a release, find the fastest way to run it on this device, and answer with it
        from then on.

        version: required version; empty for any
        Raises ExportError, DataError, Unknown or StoreError; the present release then stays in use.
        """
        with self._exchange:
            found = read_version(folder)
            if version and found != version:
                raise ExportError(f"{folder}: expected version {version}, found {found}")
            present = self._present
            if present is not None and (present.choice.version, present.choice.submodel) == (
                found,
                submodel,
            ):
                return present.choice
            with (
                release_state.guard_trial(self._store, found)
                if self._store
                else contextlib.nullcontext()
            ):
                session, choice = self._choose(folder, submodel, found)
                choice, past = self._compare(session, choice, present)
            if self._store is not None:
                self._save_release(self._store, folder, choice)
            # one assignment: a request sees either the old or the new release
            self._present = _Present(session, choice, past)
            return choice

    def open(self, path: Path, digest: str | None = None) -> Choice:
        """Answer with a single graph, without a test and other variants. Raises ExportError."""
        with self._exchange:
            count = list_thread_counts(self._threads)[-1]
            session = load(path, digest, threads=count)
            data, trial = session.metadata, Trial(FILE, CPU, count)
            number = int(data["round"]) if data["round"].isdecimal() else 0
            choice = Choice(
                sha256(path)[:12], data["run"], number, data["submodel"], trial, trials=(trial,)
            )
            self._present = _Present(session, choice)
            return choice

    def resume(self) -> Choice | None:
        """Adopt the release in use when the last process ended, or else the last good one before
        it; None if there was none.

        ExportError: none of them passes its test now.
        """
        if self._store is None:
            return None
        reasons = list[str]()
        for place in release_state.load_places(self._store):
            try:
                return self.adopt(self._store / place.folder, place.submodel, place.version)
            except EspalierError as error:
                log.warning("cannot resume version %s: %s", place.version, error)
                reasons.append(str(error))
        if reasons:
            raise ExportError(
                f"{self._store}: cannot resume any earlier release: {'; '.join(reasons)}"
            )
        return None

    def answer(self, value: Array, name: str = "the request", most: int | None = None) -> Answered:
        """Answer raw examples [n, *inputs], or one without its first axis.

        most: largest accepted number of examples
        DataError: the examples do not fit. ExportError: there is no release yet, or it fails.
        """
        present = self._present
        if present is None:
            raise ExportError("no release has arrived yet")
        x = fit_shape(value, present.session, name, most)
        try:
            found = answer(present.session, x, present.choice.classes)
        except DataError as error:  # hides local paths from the client
            raise DataError(str(error).replace(present.session.name, name)) from error
        except Exception as error:  # the runtime's errors share no base class
            self._count(failed=1)
            message = " ".join(str(error).split()).replace(
                present.session.name, Path(present.session.name).name
            )
            raise ExportError(
                f"version {present.choice.version} failed: {message[:300]}"
            ) from error
        self._count(answered=len(found))
        return Answered(present.choice, found)

    def close(self) -> None:
        """Prepare an orderly shutdown, which may interrupt a test."""
        if self._store is not None:
            release_state.clear_trial(self._store)

    def _count(self, answered: int = 0, failed: int = 0) -> None:
        with self._counting:
            counts = self._counts
            self._counts = Counts(counts.answered + answered, counts.failed + failed)

    def _save_release(self, store: Path, folder: Path, choice: Choice) -> None:
        """Record the release in use. If that fails while no release answers, only log it: answering
        until the next restart is better than not at all.
        """
        try:
            release_state.save_release(store, folder, choice.submodel, choice.version)
        except StoreError as error:
            if self._present is not None:
                raise
            log.warning(
                "version %s is in use, but a restart cannot resume it: %s", choice.version, error
            )

    def _choose(self, folder: Path, submodel: str, version: str) -> tuple[Session, Choice]:
        """Test the combination that was fastest before; measure all of them if it fails."""
        before = release_state.load_choice(version, submodel, self._threads, self._held)
        session, choice = choose(
            folder, submodel, version, threads=self._threads, held=self._held, before=before
        )
        if choice != before and not choice.busy:  # timings taken under load are not saved
            release_state.save_choice(choice, self._threads, self._held)
        return session, choice

    def _compare(
        self, session: Session, choice: Choice, present: _Present | None
    ) -> tuple[Choice, Past | None]:
        """Measure the choice and the release that it replaces one after the other: the machine's
        state may have changed since their trials.
        """
        if present is None or (present.session.inputs, present.session.dtype) != (
            session.inputs,
            session.dtype,
        ):
            return choice, None
        old, accuracy = measure_session(present.session, self._held)
        new, own = measure_session(session, self._held)
        best = replace(choice.best, p50=new.p50, p90=new.p90, runs=new.runs, accuracy=own)
        trials = tuple(best if trial == choice.best else trial for trial in choice.trials)
        return replace(choice, best=best, trials=trials), Past(
            present.choice.version, old.p90, accuracy
        )
