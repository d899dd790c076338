"""The tasks of a round, or of an evaluation, and how each stands: what `Fleet.collect` waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from federated.task import Task, Update
from federated.wire import messages

__all__ = ["Check", "Collection", "Settled"]

Check = Callable[[Task, Update], None]
"""Raises Refused for an update that is not to be folded."""


@dataclass
class Settled:
    """How one task stands. outcome: empty while it is open, then `folded` or a reason. started, seconds: of the coordinator's clock.

    update: the file of a checked update; digest: its sha256. lost: its agent went; a late return is welcome while the collection is open.
    resumed: the task went out before this coordinator started, whose clock says nothing of it.
    """

    task: Task
    started: float
    outcome: str = ""
    seconds: float = 0.0
    update: Path | None = None
    digest: str = ""
    lost: bool = False
    resumed: bool = False

    @property
    def open(self) -> bool:
        """Whether an update would still be taken."""
        return not self.outcome and self.update is None


class Collection:
    """Tasks in the order of agent and submodel names, which is the order in which their updates are folded.

    folder: below the spool, where updates stay when they are folded; empty where they go then. settled: what an earlier coordinator knew of
    the same tasks, by agent; None where there was none.
    """

    def __init__(
        self,
        tasks: Sequence[Task] = (),
        check: Check = lambda task, update: None,
        now: float = 0.0,
        folder: str = "",
        settled: Mapping[str, str] | None = None,
    ) -> None:
        ordered = sorted(tasks, key=lambda t: (t.agent, t.submodel.name))
        known = settled or {}
        self.entries = {(t.agent, t.submodel.name): Settled(t, now, known.get(t.agent, ""), resumed=settled is not None) for t in ordered}
        self.check, self.folder = check, folder
        self._waiting = list(self.entries.values())

    def of(self, agent: str) -> list[Settled]:
        return [entry for (name, _), entry in self.entries.items() if name == agent]

    def find(self, agent: str, about: messages.Offer | messages.Failure) -> Settled | None:
        """The entry that a message is about; None where no such update was asked for."""
        entry = self.entries.get((agent, about.submodel))
        if entry is None:
            return None
        task = entry.task
        return entry if (task.run, task.round, task.attempt, task.work) == (about.run, about.round, about.attempt, about.work) else None

    def complete(self, quorum: int) -> bool:
        """Whether `quorum` updates are in, or nothing more can come."""
        received = sum(e.update is not None or e.outcome == "folded" for e in self.entries.values())
        return received >= quorum or not any(e.open and not e.lost for e in self._waiting)

    def next(self, *, closing: bool) -> Iterator[Settled]:
        """The entries whose updates may be folded now: one waits for all earlier names, unless their agents went or the collection closes."""
        for entry in list(self._waiting):
            if entry.update is not None:
                self._waiting.remove(entry)
                yield entry
            elif entry.outcome:
                self._waiting.remove(entry)
            elif not entry.lost and not closing:
                return

    def close(self) -> list[Settled]:
        """Settles what is still open; the entries whose agents need no longer try."""
        for entry in self._waiting:
            entry.outcome = entry.outcome or ("gone" if entry.lost else "late")
        self._waiting = []
        return [entry for entry in self.entries.values() if entry.outcome in ("late", "gone")]
