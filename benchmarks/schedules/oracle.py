"""What must hold in every schedule, watched while it runs and checked when it is over.

An oracle promises no more than the protocol does: an update counts once the coordinator has
acknowledged it, and damage to a disk may cost a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import TypeAlias

from msgspec import structs

from benchmarks.replay import Replayed, replay
from benchmarks.schedules.faults import COORDINATOR
from benchmarks.schedules.task_runner import learn
from coordinator.fleet.driver import digest_of
from coordinator.fleet.fleet import Fleet
from coordinator.fleet.inbox import name_file
from coordinator.round import round_events as on
from coordinator.round import step as steps
from coordinator.round.actions import Action, Answer, TurnAway
from coordinator.round.round import Round
from coordinator.store.journal import Journal, pack
from coordinator.store.store import Store
from federated.errors import StoreError
from federated.wire import envelope, messages

__all__ = ["Oracle", "Struck"]

Struck: TypeAlias = Set[tuple[str, str]]
"""Faults that happened: kinds, and the processes that they happened to."""

DISK = "bit", "disk full", "power"  # faults of a disk
CONFUSING = "damage", "namesake"  # after these, a message may not be what its sender said
# after these, an agent may be asked again after it was told that all is well
UNORDERED = "delay", "double", "reorder"

SEGMENTS = 2  # of the journal, and totals: the present one, and the one before until it is swept
VALUE = 2**17  # bytes of a round's value as MessagePack; the largest of 150 schedules had 23,029


class Oracle:
    """Watches one schedule.

    runs, run: the folder of runs, and the name of the run.
    fail: is called with what does not hold.
    promised: acknowledged trainings, by agent, round, and attempt.
    dropped: tasks that the coordinator gave up, with a reason.
    attempts: round -> the attempt that was planned last.
    refusals: of updates: agent, kind and reason.
    """

    def __init__(self, runs: Path, run: str, fail: Callable[[str], None]) -> None:
        self.runs, self.run, self.fail = runs, run, fail
        self.promised = set[tuple[str, int, int]]()
        self.dropped = set[tuple[str, int]]()
        self.attempts = dict[int, int]()
        self.refusals = list[tuple[str, str, str]]()

    # ---- while it runs ---------------------------------------------------------------------------

    def step(self, value: Round, event: on.RoundEvent) -> tuple[Round, list[Action]]:
        """Do what `step` does, and look at what it did."""
        after, actions = steps.step(value, event)
        match event:
            case on.RoundPlanned(_, plan):
                self.attempts[plan.round] = plan.attempt
            case on.TasksDropped(_, keys, reason) if reason:
                self.dropped |= {(key.agent, key.round) for key in keys}
            case on.UpdateRefused(_, key, _, _, reason, kind):
                self.refusals.append((key.agent, kind, reason))
        if after is not value and (agent := sender(event)):
            self._check_limits(value, after, agent)
        for action in actions:
            if (isinstance(action, Answer) and not action.accepted and not action.reason) or (
                isinstance(action, TurnAway) and not action.reason
            ):
                self.fail(f"unexplained: {action.agent} was refused without a reason")
        return after, actions

    def _check_limits(self, before: Round, after: Round, agent: str) -> None:
        """No message of an agent changes when the tasks of others are over, nor when the phase
        is.
        """
        for key, state in after.tasks.items():
            old = before.tasks.get(key)
            if old is None or old is state or key.agent == agent or not (old.open and state.open):
                continue
            if old.due != state.due:
                self.fail(
                    f"limited: a message of {agent} changed the limit of {key.agent} "
                    f"from {old.due:.1f} to {state.due:.1f}"
                )
        phase, now = before.phase, after.phase
        if (
            phase is not None
            and now is not None
            and (phase.work, phase.began) == (now.work, now.began)
            and phase.limit != now.limit
        ):
            self.fail(f"limited: a message of {agent} changed the limit of the phase")

    def hear(self, topic: str, payload: bytes) -> None:
        """Take note of what the coordinator acknowledges."""
        agent = topic.rpartition("/")[2]
        if not topic.endswith(f"/cmd/{agent}"):
            return
        receipt = envelope.decode(payload)
        if isinstance(receipt, messages.Receipt) and receipt.accepted:
            round, attempt, work, _ = receipt.transfer.split("-", 3)
            if work == "train":
                self.promised.add((agent, int(round), int(attempt)))

    # ---- after a death ---------------------------------------------------------------------------

    def check_death(self, fleet: Fleet) -> None:
        """Fail where the journal gives neither the value that died nor the one before its last
        event.
        """
        self.check_bounds(fleet)
        driver = fleet.driver
        if driver.journal is None or not driver.journal.recording:
            return
        try:
            found = Journal(self.runs / self.run).read(driver.checkpoint)
        except StoreError as error:
            self.fail(f"unreadable: {error}")
            return
        if found is None:  # between a checkpoint and its journal
            return
        base, events = found
        value = before = structs.replace(base.round, rules=fleet.round.rules)
        for event in events:
            before, (value, _) = value, steps.step(value, event)
        if pack(fleet.round) not in (pack(value), pack(before)):
            self.fail("unequal: the journal does not give the value that died")

    def check_kept(self, *, damaged: bool) -> None:
        """Fail where a death, and what it did to the disk, lost what was acknowledged in the round
        under way.

        damaged: whether bits flipped, so that updates in the spool may be asked for again.
        """
        try:
            store = Store.open(self.runs, self.run, read_only=True)
        except StoreError:  # it died before there was a run
            return
        try:
            done, found = store.rounds_done, store.journal.read(store.checkpoint_id)
        except StoreError as error:
            self.fail(f"unreadable: {error}")
            return
        finally:
            store.close()
        value = Round() if found is None else found[0].round
        for event in found[1] if found is not None else ():
            value, _ = steps.step(value, event)
        known = {
            (one.key.agent, one.key.round, one.task.attempt): one
            for one in (*value.settled, *value.tasks.values())
            if one.key.work == "train"
        }
        for promise in sorted(self.promised):
            one = known.get(promise)
            if (
                promise[1] > done
                and (one is None or one.open)
                and not damaged
                and self.attempts.get(promise[1]) == promise[2]
            ):
                self.fail(
                    f"lost: the journal does not know that the update of {promise[0]} "
                    f"in round {promise[1]} came"
                )
        for one in () if damaged else known.values():
            kept = one.stage in ("whole", "folding") or one.key in value.unkept
            if (
                kept
                and digest_of(
                    self.runs
                    / self.run
                    / "spool"
                    / f"round-{one.key.round:06d}"
                    / name_file(one.key)
                )
                != one.digest
            ):
                self.fail(
                    f"lost: the update of {one.key.agent} in round {one.key.round} is "
                    "not in the spool, and in no snapshot"
                )

    def check_bounds(self, fleet: Fleet) -> None:
        """Fail where memory or journal grow beyond what the tasks under way need. The spool must be
        empty at the end.
        """
        folder, value = self.runs / self.run, fleet.round
        for agent in value.agents.values():
            if len(agent.tasks) > max(value.rules.stale, 0) + 2:
                self.fail(f"unbounded: {agent.name} has {len(agent.tasks)} tasks")
        if len(pack(value)) > VALUE:
            self.fail(f"unbounded: the value of a round has {len(pack(value))} bytes")
        for pattern in ("journal-*.log", "total-*"):
            if len(found := list(folder.glob(pattern))) > SEGMENTS:
                self.fail(f"unbounded: {len(found)} files {pattern}")

    # ---- at the end ------------------------------------------------------------------------------

    def check_end(self, honest: Set[str], struck: Struck, repeated: Sequence[str]) -> Replayed:
        """Check a run that is over.

        honest: agents that do as the protocol says. repeated: agents that trained again what they
        had offered.
        """
        found = replay(self.runs, self.run, make=learn)
        if found.doubled:
            self.fail(f"doubled: {found.doubled} updates")
        if not found.equal:
            self.fail("unequal: the state is not what was folded")
        if left := [path for path in (self.runs / self.run / "spool").rglob("*") if path.is_file()]:
            self.fail(f"unbounded: the spool still holds {left[0].name}")
        confused = any(kind in CONFUSING for kind, _ in struck)
        harmed = {who for kind, who in struck if kind in DISK}
        excused = honest if confused or COORDINATOR in harmed else harmed
        answered = self._answers() | self.dropped
        for agent, round, attempt in sorted(self.promised):
            if (
                again := self.attempts.get(round, attempt) != attempt
            ) and COORDINATOR not in harmed:
                self.fail(f"lost: round {round} began anew, though no disk was damaged")
            if not again and (agent, round) not in answered:
                self.fail(
                    f"lost: the update of {agent} in round {round} was acknowledged, "
                    "and neither folded nor answered for"
                )
        for agent in (
            (honest & set(repeated)) - excused
            if not any(kind in UNORDERED for kind, _ in struck)
            else ()
        ):
            self.fail(f"wasted: {agent} trained again what it had offered")
        for agent, kind, reason in self.refusals:
            if agent in honest and (agent not in excused or (kind == "size" and not confused)):
                self.fail(f"refused: {agent} is honest: {reason}")
        return found

    def _answers(self) -> set[tuple[str, int]]:
        """Return agent and round of each task that has an outcome in the run's database."""
        store = Store.open(self.runs, self.run, read_only=True)
        try:
            rounds = range(1, store.rounds_done + 1)
            return {
                (entry.agent, entry.task or number)
                for number in rounds
                for entry in store.entries(number)
                if entry.outcome
            }
        finally:
            store.close()


def sender(event: on.RoundEvent) -> str:
    """The agent whose message an event is about; empty where it is about none."""
    match event:
        case (
            on.AgentBeat()
            | on.AgentConnected()
            | on.AgentLeft()
            | on.ProfileCame()
            | on.UpdateOffered()
        ):
            return event.agent
        case on.ChunkCame() | on.TaskFailed() | on.UpdateCame() | on.UpdateRefused():
            return event.key.agent
    return ""
