"""Plant known defects in the coordinator and the agent, one at a time, to test that schedules of
random faults find them. Each defect is a patch of their code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from unittest import mock

from msgspec import structs

from coordinator.fleet.round_event_loop import RoundEventLoop
from coordinator.fleet.update_inbox import Inbox
from coordinator.round import round_events as on
from coordinator.round import update_handlers as updates
from coordinator.round.round_actions import Forget
from coordinator.round.round_state import Round, put_task
from coordinator.round.round_step import HANDLERS
from coordinator.store.journal import Journal
from federated.device.agent_state import AgentState
from federated.task import Key

__all__ = ["DEFECTS"]

Patch = tuple[str, Any]


@dataclass(frozen=True)
class Defect:
    """A defect. patches: names of attributes, and their replacements."""

    patches: tuple[Patch, ...] = ()

    @contextmanager
    def plant(self) -> Iterator[None]:
        """Plant the defect inside this context."""
        with ExitStack() as stack:
            for name, made in self.patches:
                stack.enter_context(mock.patch(name, made))
            yield


def do_nothing(*given: object, **named: object) -> None:
    """Replace a function that does something."""


def replace_handlers(made: dict[type, Callable[..., Any]]) -> Patch:
    """Return a patch that replaces the handlers of some events."""
    return "coordinator.round.round_step.HANDLERS", MappingProxyType({**HANDLERS, **made})


def forget_early(r: Round, e: on.UpdateFolded, out: list[Any]) -> Round:
    """Delete the file of a folded update before a snapshot contains it."""
    out.append(Forget(e.key))
    return updates.finish_fold(r, e, out)


def accept_again(r: Round, e: on.UpdateOffered, out: list[Any]) -> Round:
    """Accept an update as new when it is offered again."""
    state = r.tasks.get(Key(e.agent, e.offer.submodel, e.offer.round, e.offer.work))
    if state is not None and state.came:
        r = put_task(r, structs.replace(state, stage="asked", outcome=""))
    return updates.answer_offer(r, e, out)


def act_first(self: RoundEventLoop, event: on.RoundEvent) -> None:
    """Perform actions before the event is written."""
    journal, held = self.journal, list[on.RoundEvent]()
    if journal is None or not journal.recording:
        return STEP(self, event)
    with mock.patch.object(journal, "append", held.append):
        STEP(self, event)
    for one in held:
        journal.append(one)
    return None


def init_unsynced(self: Inbox, spool: Any, slots: int, *, sync: bool = True) -> None:
    """Acknowledge updates before they are on disk."""
    INBOX(self, spool, slots, sync=False)


def extend_all(r: Round, e: on.AgentBeat, out: list[Any]) -> Round:
    """Count a heartbeat of one agent as progress of all."""
    r = HANDLERS[on.AgentBeat](r, e, out)
    for state in list(r.tasks.values()):
        r = put_task(r, structs.replace(state, moved=r.now)) if state.open else r
    return r


def refuse_without_reason(r: Round, e: on.UpdateRefused, out: list[Any]) -> Round:
    """Reject an update without a reason."""
    return HANDLERS[on.UpdateRefused](r, structs.replace(e, reason=""), out)


def read_torn(data: bytes) -> list[bytes]:
    """Read what a power cut left of the last record as if it were complete."""
    from coordinator.store.journal_framing import FRAME, SYNCED

    found, start = [], 0
    while start + FRAME.size < len(data):
        length = FRAME.unpack_from(data, start)[0] & ~SYNCED
        found.append(data[start + FRAME.size : start + FRAME.size + length])
        start += FRAME.size + length
    return found


def find_newest(self: Journal, checkpoint: str) -> Any:
    """Use any segment, whatever checkpoint it continues."""
    for path in sorted(self._segments(), reverse=True):
        return path, *self._read(path)
    return None


def read_unverified(self: RoundEventLoop, key: Any, collector: Any) -> Any:
    """Read an update from the spool without checking its digest."""
    if key in self._updates:
        return self._updates.pop(key)
    return self._read(self.round.tasks[key].task, self.inbox.path(key), collector)


def announce_again(a: AgentState) -> AgentState:
    """Repeat the profile and the status, but no offer."""
    return structs.replace(a, said=None)


INBOX, STEP = Inbox.__init__, RoundEventLoop._step
DRIVER = "coordinator.fleet.round_event_loop.RoundEventLoop"

DEFECTS: dict[str, Defect] = {
    "": Defect(),
    "the journal is not synced": Defect((("coordinator.store.journal.Journal.sync", do_nothing),)),
    "an update is acknowledged before it is on disk": Defect(
        (("coordinator.fleet.update_inbox.Inbox.__init__", init_unsynced),)
    ),
    "an update leaves the spool before its snapshot": Defect(
        (replace_handlers({on.UpdateFolded: forget_early}),)
    ),
    "an update that comes twice counts twice": Defect(
        (replace_handlers({on.UpdateOffered: accept_again}),)
    ),
    "a lease never ends": Defect(
        (("coordinator.round.task_state.TaskState.due", property(lambda self: float("inf"))),)
    ),
    "actions come before their event is written": Defect(((f"{DRIVER}._step", act_first),)),
    "a torn record is read": Defect((("coordinator.store.journal.split_records", read_torn),)),
    "a journal continues any checkpoint": Defect(
        (("coordinator.store.journal.Journal._find", find_newest),)
    ),
    "a replay trusts the spool": Defect(((f"{DRIVER}._update", read_unverified),)),
    "lost tasks are not told again": Defect(
        (("coordinator.round.agent_handlers.remind", lambda r, state, pause, out: r),)
    ),
    "a late task holds the round": Defect(
        (("coordinator.round.task_state.TaskState.working", property(lambda self: self.open)),)
    ),
    "a heartbeat extends every lease": Defect((replace_handlers({on.AgentBeat: extend_all}),)),
    "an update is refused without a reason": Defect(
        (replace_handlers({on.UpdateRefused: refuse_without_reason}),)
    ),
    "old segments of the journal stay": Defect(
        (("coordinator.store.journal.Journal.sweep", do_nothing),)
    ),
    "an agent does not offer its update again": Defect(
        (
            ("federated.device.transfers.Uploads.check_stalls", lambda self, now: []),
            ("federated.device.agent_step.repeat_all", announce_again),
        )
    ),
    "an agent's update does not outlive its process": Defect(
        (("federated.device.agent_run_files.Spool.note", do_nothing),)
    ),
}
