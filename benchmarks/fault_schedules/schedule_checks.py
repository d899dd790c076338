"""Check a simulated fleet while a schedule runs, and after it.

The checks demand no more than the protocol promises: an update counts once the coordinator has
acknowledged it, and damage to a disk may cost a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from msgspec import structs

from benchmarks.fault_schedules.random_schedules import COORDINATOR
from benchmarks.fault_schedules.virtual_training import learn
from benchmarks.final_model_recomputation import ReplayResult, replay
from coordinator.fleet.message_loop import MessageLoop
from coordinator.fleet.update_file_names import update_path
from coordinator.round import round_events as on
from coordinator.round import round_step as steps
from coordinator.round.round_actions import Action, Answer, RefuseAgent
from coordinator.round.round_state import Round
from coordinator.store.folder_check import find_problem
from coordinator.store.journal import Journal, pack
from coordinator.store.run_store import Store
from federated.errors import StoreError
from federated.wire import envelope, messages

__all__ = ["Happened", "Oracle"]

Happened: TypeAlias = Set[tuple[str, str]]
"""Faults that happened, as kind and process."""

DISK = "bit", "disk full", "power"  # faults of a disk
CONFUSING = "damage", "namesake"  # these change messages after they were sent
# after these, an agent may train an update again that it has offered
UNORDERED = "delay", "double", "reorder"

SEGMENTS = 2  # journal segments or totals: the present one, and the last until it is swept
VALUE = 2**17  # bytes of a round's value as MessagePack; 150 schedules had at most 23,029


class Oracle:
    """Checks of one schedule, from the events and messages of its coordinator.

    runs, run: folder of runs, and name of the run
    fail: called with each failed check
    promised: acknowledged trainings, by agent, round and attempt
    dropped: tasks that the coordinator gave up, with a reason
    attempts: last planned attempt, by round
    refusals: rejected updates, as agent, kind and reason
    """

    def __init__(self, runs: Path, run: str, fail: Callable[[str], None]) -> None:
        self.runs, self.run, self.fail = runs, run, fail
        self.promised = set[tuple[str, int, int]]()
        self.dropped = set[tuple[str, int]]()
        self.attempts = dict[int, int]()
        self.refusals = list[tuple[str, str, str]]()

    # ---- during a schedule -----------------------------------------------------------------------

    def step(self, value: Round, event: on.RoundEvent) -> tuple[Round, list[Action]]:
        """Call `step`, and check its result."""
        after, actions = steps.step(value, event)
        match event:
            case on.RoundPlanned(_, plan):
                self.attempts[plan.round] = plan.attempt
            case on.TasksDropped(_, keys, reason) if reason:
                self.dropped |= {(key.agent, key.round) for key in keys}
            case on.UpdateRefused(_, key, _, _, reason, kind):
                self.refusals.append((key.agent, kind, reason))
        if after is not value and (agent := find_sender(event)):
            self._check_limits(value, after, agent)
        for action in actions:
            if (isinstance(action, Answer) and not action.accepted and not action.reason) or (
                isinstance(action, RefuseAgent) and not action.reason
            ):
                self.fail(f"unexplained: {action.agent} was rejected without a reason")
        return after, actions

    def _check_limits(self, before: Round, after: Round, agent: str) -> None:
        """Check that a message of an agent changes no deadline of other agents, nor that of the
        phase.
        """
        for key, state in after.tasks.items():
            old = before.tasks.get(key)
            if old is None or old is state or key.agent == agent or not (old.open and state.open):
                continue
            if old.due != state.due:
                self.fail(
                    f"limited: a message of {agent} changed the deadline of {key.agent} "
                    f"from {old.due:.1f} to {state.due:.1f}"
                )
        phase, now = before.phase, after.phase
        if (
            phase is not None
            and now is not None
            and (phase.work, phase.began) == (now.work, now.began)
            and phase.limit != now.limit
        ):
            self.fail(f"limited: a message of {agent} changed the deadline of the phase")

    def hear(self, topic: str, payload: bytes) -> None:
        """Record what the coordinator acknowledges."""
        agent = topic.rpartition("/")[2]
        if not topic.endswith(f"/cmd/{agent}"):
            return
        receipt = envelope.decode(payload)
        if isinstance(receipt, messages.Receipt) and receipt.accepted:
            round, attempt, work, _ = receipt.transfer.split("-", 3)
            if work == "train":
                self.promised.add((agent, int(round), int(attempt)))

    # ---- after a death ---------------------------------------------------------------------------

    def check_death(self, fleet: MessageLoop) -> None:
        """Check that the journal restores the value at a death, or that before its last event."""
        self.check_bounds(fleet)
        driver = fleet.driver
        if driver.journal is None or not driver.journal.recording:
            return
        try:
            found = Journal(self.runs / self.run).read(driver.checkpoint)
        except StoreError as error:
            self.fail(f"unreadable: {error}")
            return
        if found is None:  # it died between a checkpoint and its journal
            return
        base, events = found
        value = before = structs.replace(base.round, rules=fleet.round.rules)
        for event in events:
            before, (value, _) = value, steps.step(value, event)
        if pack(fleet.round) not in (pack(value), pack(before)):
            self.fail("unequal: the journal does not restore the value at the death")

    def check_kept(self, *, damaged: bool) -> None:
        """Check that a death, with its damage to the disk, lost nothing that was acknowledged in
        the present round.

        damaged: bits flipped, so that spooled updates may be asked for again
        """
        try:
            store = Store.open(self.runs, self.run, read_only=True)
        except StoreError:  # it died before the run was created
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
                    f"lost: the update of {promise[0]} in round {promise[1]} is missing from "
                    "the journal"
                )
        for one in () if damaged else known.values():
            kept = one.stage in ("whole", "folding") or one.key in value.unkept
            path = update_path(self.runs / self.run / "spool", one.key)
            if kept and find_problem(path, one.digest):
                self.fail(
                    f"lost: the update of {one.key.agent} in round {one.key.round} is neither in "
                    "the spool nor in a snapshot"
                )

    def check_bounds(self, fleet: MessageLoop) -> None:
        """Check that memory and journal stay within what the present tasks need."""
        folder, value = self.runs / self.run, fleet.round
        for agent in value.agents.values():
            tasks = [value.tasks[key] for key in agent.tasks]
            probes = [task for task in tasks if task.probe and task.carried]
            waiting = sum(task.outlasting for task in probes)
            # an agent may have two evaluations and its late updates, one open probe of a closed
            # phase, and finished probes of the three phases, which the next training drops
            if (
                waiting > 1
                or len(probes) > 3
                or len(tasks) - len(probes) > max(value.rules.stale, 0) + 2
            ):
                self.fail(
                    f"unbounded: {agent.name} has {len(tasks)} tasks, {len(probes)} probes of "
                    f"closed phases, {waiting} of them open"
                )
        if len(pack(value)) > VALUE:
            self.fail(f"unbounded: the value of a round has {len(pack(value))} bytes")
        for pattern in ("journal-*.log", "total-*"):
            if len(found := list(folder.glob(pattern))) > SEGMENTS:
                self.fail(f"unbounded: {len(found)} files {pattern}")

    # ---- at the end ------------------------------------------------------------------------------

    def check_end(
        self, honest: Set[str], happened: Happened, repeated: Sequence[str]
    ) -> ReplayResult:
        """Check a finished run.

        honest: agents that follow the protocol
        repeated: agents that trained again what they had offered
        """
        found = replay(self.runs, self.run, make=learn)
        if found.doubled:
            self.fail(f"doubled: {found.doubled} updates")
        if not found.equal:
            self.fail("unequal: the state differs from the folded updates")
        if left := [path for path in (self.runs / self.run / "spool").rglob("*") if path.is_file()]:
            self.fail(f"unbounded: the spool still holds {left[0].name}")
        confused = any(kind in CONFUSING for kind, _ in happened)
        harmed = {who for kind, who in happened if kind in DISK}
        excused = honest if confused or COORDINATOR in harmed else harmed
        answered = self._answers() | self.dropped
        for agent, round, attempt in sorted(self.promised):
            if (
                again := self.attempts.get(round, attempt) != attempt
            ) and COORDINATOR not in harmed:
                self.fail(f"lost: round {round} restarted, though no disk was damaged")
            if not again and (agent, round) not in answered:
                self.fail(
                    f"lost: the update of {agent} in round {round} was acknowledged, but neither "
                    "folded nor given an outcome"
                )
        in_order = not any(kind in UNORDERED for kind, _ in happened)
        for agent in (honest & set(repeated)) - excused if in_order else ():
            self.fail(f"wasted: {agent} trained an offered update again")
        for agent, kind, reason in self.refusals:
            if agent in honest and (agent not in excused or (kind == "size" and not confused)):
                self.fail(f"rejected: {agent} is honest: {reason}")
        return found

    def _answers(self) -> set[tuple[str, int]]:
        """Return agent and round of each task that has an outcome in the run's database."""
        with closing(Store.open(self.runs, self.run, read_only=True)) as store:
            rounds = range(1, store.rounds_done + 1)
            return {
                (entry.agent, entry.task or number)
                for number in rounds
                for entry in store.read_entries(number)
                if entry.outcome
            }


def find_sender(event: on.RoundEvent) -> str:
    """Return the agent whose message an event is about, if any."""
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
