"""Defects that are planted one at a time, to see whether schedules find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from unittest import mock

from msgspec import structs

from coordinator.fleet.driver import Driver
from coordinator.fleet.inbox import Inbox
from coordinator.round import round_events as on
from coordinator.round import updates
from coordinator.round.actions import Forget
from coordinator.round.round import Round, put
from coordinator.round.step import HANDLERS
from coordinator.store.journal import Journal
from federated.task import Key
from federated.wire.codecs.raw import RAW

__all__ = ["DEFECTS", "Defect"]

Patch = tuple[str, Any]


@dataclass(frozen=True)
class Defect:
    """What is replaced while it is planted: names of attributes, and what stands in their place."""

    patches: tuple[Patch, ...] = ()

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, made in self.patches:
                stack.enter_context(mock.patch(name, made))
            yield


def nothing(*given: object, **named: object) -> None:
    """In place of a function that does something."""


def handlers(made: dict[type, Callable[..., Any]]) -> Patch:
    """Other handlers of some events, in place of the round's own."""
    return "coordinator.round.step.HANDLERS", MappingProxyType({**HANDLERS, **made})


def forget_at_once(r: Round, e: on.UpdateFolded, out: list[Any]) -> Round:
    """The file of a folded update goes before any snapshot holds it."""
    out.append(Forget(e.key))
    return updates.folded(r, e, out)


def accept_again(r: Round, e: on.UpdateOffered, out: list[Any]) -> Round:
    """An update that came is taken for a new one when it is offered again."""
    state = r.tasks.get(Key(e.agent, e.offer.submodel, e.offer.round, e.offer.work))
    if state is not None and state.came:
        r = put(r, structs.replace(state, stage="asked", outcome=""))
    return updates.offer(r, e, out)


def acted_first(self: Driver, event: on.RoundEvent) -> None:
    """Actions come before the event is written."""
    journal, held = self.journal, list[on.RoundEvent]()
    if journal is None or not journal.recording:
        return STEP(self, event)
    with mock.patch.object(journal, "append", held.append):
        STEP(self, event)
    for one in held:
        journal.append(one)
    return None


def unchecked(self: Inbox, spool: Any, slots: int, *, sync: bool = True) -> None:
    """Updates are acknowledged before they are on disk."""
    INBOX(self, spool, slots, sync=False)


def patient(r: Round, e: on.AgentBeat, out: list[Any]) -> Round:
    """A heartbeat of one agent counts as progress of all."""
    r = HANDLERS[on.AgentBeat](r, e, out)
    for state in list(r.tasks.values()):
        r = put(r, structs.replace(state, moved=r.now)) if state.open else r
    return r


def unexplained(r: Round, e: on.UpdateRefused, out: list[Any]) -> Round:
    """Refuse an update without giving a reason."""
    return HANDLERS[on.UpdateRefused](r, structs.replace(e, reason=""), out)


def uncut(data: bytes) -> list[bytes]:
    """What a power cut left of the last record is read as if it were whole."""
    from coordinator.store.journal import FRAME, SYNCED

    found, start = [], 0
    while start + FRAME.size < len(data):
        length = FRAME.unpack_from(data, start)[0] & ~SYNCED
        found.append(data[start + FRAME.size : start + FRAME.size + length])
        start += FRAME.size + length
    return found


def newest(self: Journal, checkpoint: str) -> Any:
    """Any segment will do, whatever checkpoint it continues."""
    for path in sorted(self._segments(), reverse=True):
        return path, *self._read(path)
    return None


def unlooked(self: Driver, key: Any) -> Any:
    """An update is read from the spool without a look at its digest."""
    return self._updates.pop(key, None) or self.inbox.read(self.inbox.path(key), RAW)


INBOX, STEP = Inbox.__init__, Driver._step
DRIVER = "coordinator.fleet.driver.Driver"

DEFECTS: dict[str, Defect] = {
    "": Defect(),
    "the journal is not synced": Defect((("coordinator.store.journal.Journal.sync", nothing),)),
    "an update is acknowledged before it is on disk": Defect(
        (("coordinator.fleet.inbox.Inbox.__init__", unchecked),)
    ),
    "an update leaves the spool before its snapshot": Defect(
        (handlers({on.UpdateFolded: forget_at_once}),)
    ),
    "an update that comes twice counts twice": Defect(
        (handlers({on.UpdateOffered: accept_again}),)
    ),
    "a lease never ends": Defect(
        (("coordinator.round.task_state.TaskState.due", property(lambda self: float("inf"))),)
    ),
    "actions come before their event is written": Defect(((f"{DRIVER}._step", acted_first),)),
    "a torn record is read": Defect((("coordinator.store.journal.split_records", uncut),)),
    "a journal continues any checkpoint": Defect(
        (("coordinator.store.journal.Journal._find", newest),)
    ),
    "a replay trusts the spool": Defect(((f"{DRIVER}._update", unlooked),)),
    "lost tasks are not told again": Defect(
        (("coordinator.round.agents.remind", lambda r, state, pause, out: r),)
    ),
    "a late task holds the round": Defect(
        (("coordinator.round.task_state.TaskState.working", property(lambda self: self.open)),)
    ),
    "a heartbeat extends every lease": Defect((handlers({on.AgentBeat: patient}),)),
    "an update is refused without a reason": Defect((handlers({on.UpdateRefused: unexplained}),)),
    "old segments of the journal stay": Defect(
        (("coordinator.store.journal.Journal.sweep", nothing),)
    ),
    "an agent does not offer its update again": Defect(
        (("federated.device.uploads.Uploads.stalled", lambda self, now: []),)
    ),
    "an agent's update does not outlive its process": Defect(
        (("federated.device.spool.Spool.keep", nothing),)
    ),
}
