"""The tasks of a round, or of an evaluation, and how each stands: what `Fleet.collect` waits for."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.inbox import Key
from coordinator.leases import Lease, overdue
from federated.task import Task, Update
from federated.wire import messages

__all__ = ["CARRIED", "RETURN", "Check", "Collection", "Settled", "concerns", "key_of", "unchecked"]

RETURN = 20.0  # seconds in which an agent that went may come back to a round that has nobody else to wait for
CARRIED = "carried"  # the outcome of a task that stays open in later rounds


@dataclass(eq=False)
class Settled:
    """How one task stands. outcome: empty while it is open, then `folded` or a reason. started, seconds: of the coordinator's clock.

    check: raises Refused for an update that is not to be folded. update: the file of a checked update; digest: its sha256.
    lost: its agent went, at `lost_at`; late: it shows no progress, and its lease is over. Either way a late return is welcome while the
    collection is open. resumed: the task went out before this coordinator started, whose clock says nothing of it. carried: it is of an
    earlier round.
    """

    task: Task
    started: float
    check: Check
    outcome: str = ""
    seconds: float = 0.0
    update: Path | None = None
    digest: str = ""
    lost: bool = False
    lost_at: float = 0.0
    late: bool = False
    resumed: bool = False
    carried: bool = False
    lease: Lease = field(default_factory=Lease)

    @property
    def open(self) -> bool:
        """Whether an update would still be taken."""
        return not self.outcome and self.update is None

    @property
    def counted_on(self) -> bool:
        """Whether it is open and its agent is at it, as far as anyone can tell."""
        return self.open and not self.lost and not self.late

    def returning(self, now: float) -> bool:
        """Whether its agent went so lately that it may be back at once, as one is whose link broke, or that was started again."""
        return self.open and self.lost and not self.late and self.lease.seconds < math.inf and now - self.lost_at < RETURN

    @property
    def came(self) -> bool:
        """Whether its update is in."""
        return self.update is not None or self.outcome == "folded"


Check = Callable[[Settled, Update], None]
"""Raises Refused for an update that is not to be folded."""


def unchecked(settled: Settled, update: Update) -> None:
    """Takes any update."""


def key_of(task: Task) -> Key:
    return task.agent, task.submodel.name, task.round


def concerns(about: messages.Offer | messages.Failure, task: Task) -> bool:
    """Whether a message is about this task, by this attempt."""
    return (task.run, task.round, task.attempt, task.work) == (about.run, about.round, about.attempt, about.work)


class Collection:
    """Tasks in the order of agent and submodel names, which is the order in which their updates are folded; later ones after them.

    folder: below the spool, where updates stay when they are folded; empty where they go then. settled: what an earlier coordinator knew of
    the same tasks, by agent and round; None where there was none. carried: tasks of earlier rounds that are still open, for which nobody waits.
    flowing: nobody waits for anybody, and updates are folded as they come, the carried ones counted like all others.
    waiting: how many updates may wait for those before them until the first of them no longer does; 0: any number.
    """

    def __init__(
        self,
        tasks: Sequence[Task] = (),
        check: Check = unchecked,
        now: float = 0.0,
        folder: str = "",
        settled: Mapping[tuple[str, int], str] | None = None,
        carried: Iterable[Settled] = (),
        *,
        flowing: bool = False,
        waiting: int = 0,
    ) -> None:
        self.entries: dict[Key, Settled] = {}
        self._by_agent: dict[str, list[Settled]] = {}
        self.check, self.folder, self.flowing = check, folder, flowing
        self._known = settled
        self._most = waiting or math.inf
        self._waiting: list[Settled] = []
        self.add(tasks, now)
        for entry in sorted(carried, key=lambda e: key_of(e.task)):
            entry.outcome = entry.outcome or (settled or {}).get((entry.task.agent, entry.task.round), "")
            self._hold(entry)

    def add(self, tasks: Sequence[Task], now: float) -> list[Settled]:
        """More tasks, behind those that are there."""
        made = []
        for task in sorted(tasks, key=key_of):
            outcome = (self._known or {}).get((task.agent, task.round), "")
            lease = Lease(now, task.lease) if task.lease else Lease(now)
            made.append(Settled(task, now, self.check, outcome, resumed=self._known is not None, lease=lease))
            self._hold(made[-1])
        return made

    def begin_anew(self) -> None:
        """From now on, tasks that are added are new ones, whatever an earlier coordinator knew."""
        self._known = None

    def _hold(self, entry: Settled) -> None:
        self.entries[key_of(entry.task)] = entry
        self._by_agent.setdefault(entry.task.agent, []).append(entry)
        self._waiting.append(entry)

    def of(self, agent: str) -> list[Settled]:
        return list(self._by_agent.get(agent, ()))

    def find(self, agent: str, about: messages.Offer | messages.Failure) -> Settled | None:
        """The entry that a message is about; None where no such update was asked for."""
        entry = self.entries.get((agent, about.submodel, about.round))
        return entry if entry is not None and concerns(about, entry.task) else None

    def complete(self, quorum: int, now: float = math.inf) -> bool:
        """Whether `quorum` updates are in, or nothing more can come, not even of those that have only just gone."""
        counted = [e for e in self.entries.values() if self.flowing or not e.carried]
        return sum(e.came for e in counted) >= quorum or not any(e.counted_on or e.returning(now) for e in counted)

    def watch(self, now: float, engaged: Container[Key] = ()) -> list[Settled]:
        """The tasks that are overdue since the last look. engaged: those whose updates are here in part, or wait until there is a slot for them."""
        late = [entry for entry in self._waiting if entry.counted_on and overdue(entry.lease, now) and key_of(entry.task) not in engaged]
        for entry in late:
            entry.late = True
        return late

    def next(self, *, closing: bool) -> Iterator[Settled]:
        """The entries whose updates may be folded now: one waits for all before it, unless those are late or gone, or the collection closes.

        Where more wait than may, sums differ by rounding from those in the order of names.
        """
        received, held = sum(entry.update is not None and not entry.outcome for entry in self._waiting), False
        for entry in list(self._waiting):
            if entry.outcome == CARRIED:
                continue
            if held and received <= self._most:
                return
            if entry.outcome:  # before its file, which may lie there though it is folded: a coordinator died before it went
                self._waiting.remove(entry)
            elif entry.update is not None:
                self._waiting.remove(entry)
                received -= 1
                yield entry
            elif entry.counted_on and not entry.carried and not self.flowing and not closing:
                held = True

    def close(self, carry: Callable[[Settled], bool] = lambda entry: False) -> tuple[list[Settled], list[Settled]]:
        """Settles what is still open; the entries whose agents need no longer try, and those that go on into later rounds."""
        carried = []
        for entry in self._waiting:
            entry.outcome = "" if entry.outcome == CARRIED else entry.outcome
            if not entry.outcome and carry(entry):
                entry.carried = True
                carried.append(entry)
                del self.entries[key_of(entry.task)]
            else:
                entry.outcome = entry.outcome or ("gone" if entry.lost else "stale" if entry.carried else "late")
        self._waiting, self._by_agent = [], {}
        for entry in self.entries.values():
            self._by_agent.setdefault(entry.task.agent, []).append(entry)
        return [entry for entry in self.entries.values() if entry.outcome in ("late", "gone", "stale")], carried
