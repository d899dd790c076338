"""Release a version to a few agents first (the canary), and then, depending on their reports, to
all, or take it back. Models and agents' software are released this way.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Generic

import msgspec

from coordinator.release import history as releases
from coordinator.release.canary import Verdict, select_reports
from coordinator.release.history import History, ReportType, VersionType
from coordinator.release.history_file import HistoryFile
from federated.errors import ExportError
from federated.runtime.console import Say, show_progress

__all__ = ["StagedRelease", "format_now"]

WAIT = 15.0  # seconds for all agents to report after a change that is no canary
POLL = 0.2  # seconds that one wait for a message lasts


class StagedRelease(ABC, Generic[VersionType, ReportType]):
    """The releases of one run at one broker; a subclass says of what."""

    wait = WAIT  # seconds for all agents to report after a promotion
    verb, kept = "serve", "its agents keep it until a release"  # said about a rollback

    def __init__(self, file: HistoryFile[VersionType, ReportType], say: Say) -> None:
        self._file, self._say = file, say
        self.run = file.run

    @abstractmethod
    def _get_reports(self) -> Mapping[str, ReportType]:
        """Return the last report of each agent."""

    @abstractmethod
    def _receive(self, seconds: float) -> None:
        """Wait for a message, and record it if it is a report."""

    @abstractmethod
    def _judge(self, history: History[VersionType, ReportType]) -> Verdict:
        """Judge whether the canary may be promoted."""

    @abstractmethod
    def _write(self, history: History[VersionType, ReportType]) -> None:
        """Store a history, and bring the broker to its state."""

    @abstractmethod
    def _report(self, history: History[VersionType, ReportType]) -> dict[str, Any]:
        """Print the status, and return it as plain values."""

    def _list_done(self, agents: Sequence[str], version: str) -> set[str]:
        """Return the agents about which all is known that a decision on a version needs."""
        return set(select_reports(agents, version, self._get_reports()))

    def _promote_by_command(self, wait: float | None, *, force: bool) -> dict[str, Any]:
        """Promote the canary. Raises ExportError if something speaks against it."""
        history = self._collect_reports()
        releases.promote(history, "")  # raises ExportError without a canary
        verdict = self._judge(history)
        if not verdict.good and not force:
            listed = "".join(f"\n  - {reason}" for reason in verdict.reasons)
            raise ExportError(
                f"version {history.canary} is not promoted (use --force to promote it anyway, "
                f"or --rollback to withdraw it):{listed}"
            )
        return self._settle(
            history.canary, verdict, self.wait if wait is None else wait, promote=True
        )

    def _decide(self, *, force: bool) -> dict[str, Any]:
        """Promote a canary or roll it back, depending on its agents' reports."""
        history = self._collect_reports()
        verdict = self._judge(history)
        return self._settle(history.canary, verdict, self.wait, promote=verdict.good or force)

    def _settle(self, name: str, verdict: Verdict, wait: float, *, promote: bool) -> dict[str, Any]:
        """Promote a canary and wait for the reports of all agents, or roll it back."""
        with self._file.lock():
            history = self._file.read()
            if history.canary != name:
                raise ExportError(
                    f"version {name} is no longer a canary: another command changed the release"
                )
            change = releases.promote if promote else releases.roll_back
            self._write(change(history, format_now(), verdict.reasons))
        self._say(f"version {name} is {'promoted to all agents' if promote else 'rolled back'}")
        for reason in verdict.reasons if promote else ():
            self._say(f"ignored: {reason}")
        if promote:
            self._wait_for_reports(tuple(sorted(self._get_reports())), wait)
        result = self._report(self._collect_reports())
        result["verdict"] = msgspec.to_builtins(verdict)
        if not promote:
            result["error"] = f"version {name} was rolled back: {'; '.join(verdict.reasons)}"
        return result

    def _withdraw(self) -> str:
        """Roll back the canary, or the stable version. Return the version that replaces it; empty
        if there is none.
        """
        with self._file.lock():
            history = releases.add_reports(self._file.read(), self._get_reports())
            name, then = releases.find_rollback_target(history)
            self._write(releases.roll_back(history, format_now(), ("by command",)))
        self._say(
            f"rolled back version {name}; "
            + (f"agents are told to {self.verb} {then}" if then else self.kept)
        )
        return then

    def _wait_for_reports(self, agents: tuple[str, ...], seconds: float) -> None:
        """Receive messages until all is known about these agents, or time is up."""
        history = self._file.read()
        name, until = history.canary or history.stable, time.monotonic() + seconds
        self._say(f"waiting up to {seconds:g} s for {', '.join(agents) or 'agents'}")
        with show_progress("waiting for the reports of agents") as show:
            while time.monotonic() < until:
                done = self._list_done(agents, name)
                show(len(done), len(agents))
                if len(done) == len(agents):
                    return
                self._receive(POLL)

    def _collect_reports(self) -> History[VersionType, ReportType]:
        """Add the agents' current reports to the history, and write it."""
        with self._file.lock():
            history = releases.add_reports(self._file.read(), self._get_reports())
            if history.items:
                self._file.write(history)
        return history


def format_now() -> str:
    """Return the time of an event in a history."""
    return datetime.now(UTC).isoformat(timespec="seconds")
