"""Handle each event of a round: compute the next state with
`coordinator.round.round_step.step`, record the event in the journal, and carry out the
actions.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

from coordinator.fleet.message_sender import Endpoint
from coordinator.fleet.run_clock import RunClock
from coordinator.fleet.update_file_names import TEMPORARY
from coordinator.fleet.update_inbox import MAX_DAMAGED, Inbox
from coordinator.observe.events import Publish, Rejected
from coordinator.observe.round_records import RoundRecord
from coordinator.round import round_actions as do
from coordinator.round import round_events as on
from coordinator.round.collector_interface import Collector, limit_size
from coordinator.round.round_actions import Action
from coordinator.round.round_state import Phase, Round, Rules, list_carried_tasks
from coordinator.round.round_step import step
from coordinator.round.tensor_check import Examined
from coordinator.store.folder_check import find_file_damage, find_problem
from coordinator.store.journal import Base, Journal
from coordinator.store.run_store import Store
from coordinator.trust.message_checks import check_match
from federated.errors import Malformed, Refused, StoreError, WireError
from federated.task import Key, Task, Update, Work
from federated.wire import messages
from federated.wire.codecs.catalogue import find_loaded_codec
from federated.wire.messages import JOINING

__all__ = ["RoundEventLoop"]

log = logging.getLogger(__name__)

LONG = 100_000  # events after which the journal begins a new segment
LARGE = 2**24  # bytes of events after which it does
UNREADABLE = (OSError, ValueError, WireError)  # how reading an update fails if its file is damaged
REPEATED = (  # events whose senders repeat them
    on.AgentBeat,
    on.AgentConnected,
    on.AgentLeft,
    on.AgentsBarred,
    on.ChunkCame,
    on.ProfileCame,
    on.SpoolFilled,
    on.TaskFailed,
    on.Ticked,
    on.TransfersRestored,
    on.UpdateCame,
    on.UpdateOffered,
    on.UpdateRefused,
)


class RoundEventLoop:
    """Holds the round and carries out its actions.

    endpoint: sends messages to agents.
    inbox: receives updates.
    journal: where events are recorded before anything follows from them; None if an interrupted
        round starts again from its beginning.
    checkpoint: round and sha256 of the last checkpoint.
    stalled: whether the journal has no room.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        inbox: Inbox,
        rules: Rules,
        publish: Publish,
        clock: Callable[[], float],
        journal: Journal | None,
    ) -> None:
        self.endpoint, self.inbox, self.publish, self.clock, self.journal = (
            endpoint,
            inbox,
            publish,
            clock,
            journal,
        )
        self.round, self._rules = Round(rules, clock()), rules
        self.checkpoint, self.stalled = "", False
        self._collectors: dict[Work, Collector] = {}
        self._updates: dict[Key, Update] = {}  # checked just now, as views of their files
        self._verified = set[Key]()  # checked just now by workers
        self._lost = Counter[Key]()  # times that an accepted update was lost
        self._events: deque[on.RoundEvent] = deque()

    @property
    def phase(self) -> Phase:
        assert self.round.phase is not None, "no phase has begun"
        return self.round.phase

    # ---- events ----------------------------------------------------------------------------------

    def handle(self, event: on.RoundEvent) -> None:
        """Step the round with an event and carry out the actions, then do the same with the events
        that these cause. Raises StoreError.
        """
        self._events.append(event)
        if len(self._events) > 1:
            return  # called from an action of the first one, whose loop handles this event
        try:
            while self._events:
                self._step(self._events[0])
                self._events.popleft()
        except BaseException:
            self._events.clear()
            raise
        finally:
            # a waiting update may be damaged on disk meanwhile: it is read and checked again
            self._updates.clear()
            self._verified.clear()

    def _step(self, event: on.RoundEvent) -> None:
        """Record the event before acting on it. An event that cannot be recorded is dropped if its
        sender repeats it.
        """
        after, actions = step(self.round, event)
        if after is not self.round and self.journal is not None and self.journal.recording:
            try:
                self.journal.append(event)
            except StoreError as error:
                if isinstance(event, REPEATED):
                    self._stall(error)
                    return
                # a failed snapshot need not be recorded
                if not (isinstance(event, on.SnapshotTaken) and not event.written):
                    raise
        self.round = after
        self._recover()
        if self.journal is not None and any(is_binding(event, action) for action in actions):
            self.journal.sync()
        if isinstance(event, on.UpdateFolded):
            collector = self._collectors[self.phase.work]
            collector.fold(self.round.tasks[event.key], self._update(event.key, collector))
            if not any(isinstance(one, on.UpdateFolded) for one in islice(self._events, 1, None)):
                self._collectors[self.phase.work].settle()
        for action in actions:
            self._do(action)

    def _stall(self, error: StoreError) -> None:
        """Stop the clock while the journal has no room, so that agents whose messages are dropped
        do not become late.
        """
        if not self.stalled:
            log.error("%s; messages of agents are ignored until there is room", error)
        self.stalled = True
        if isinstance(self.clock, RunClock):
            self.clock.stop("journal")

    def _recover(self) -> None:
        """Catch up once there is room again: agents send their status and profile only once."""
        if not self.stalled:
            return
        self.stalled = False
        self.endpoint.listen()
        if isinstance(self.clock, RunClock):
            self.clock.start("journal")

    # ---- actions ---------------------------------------------------------------------------------

    def _do(self, action: Action) -> None:
        match action:
            case do.Ask(task):
                self.endpoint.tell(task.agent, task)
            case do.Receive(agent, offer):
                self._receive(agent, offer)
            case do.Answer(agent, transfer, accepted, reason, kind):
                if not accepted:
                    self.publish(Rejected(kind, agent, reason, agent, transfer))
                self.endpoint.tell(agent, messages.Receipt(transfer, accepted, reason))
            case do.Abort(task, reason):
                self.endpoint.tell(task.agent, messages.Abort(task.round, task.attempt, reason))
            case do.RefuseAgent(agent, reason):
                self.endpoint.tell(agent, messages.Refusal(reason, JOINING))
            case do.Prepare(agent):
                self._prepare(agent)
            case do.Fold(key):
                self._fold(key)
            case do.Snapshot(keys):
                written = self._snapshot()
                self.handle(on.SnapshotTaken(self.clock(), keys if written else (), written))
            case do.Forget(key):
                self.inbox.remove(key)
            case do.Relieve(made):
                self.inbox.retry(made)
            case do.Report(event):
                self.publish(event)

    def _receive(self, agent: str, offer: messages.Offer) -> None:
        try:
            grant = self.inbox.open(agent, offer, self.clock())
            if grant is not None:
                self.endpoint.tell(agent, grant)
        except Refused as error:
            key = Key(agent, offer.submodel, offer.round, offer.work)
            self.handle(
                on.UpdateRefused(
                    self.clock(), key, offer.attempt, offer.manifest.transfer, str(error), "size"
                )
            )

    def _fold(self, key: Key) -> None:
        """Read an update before it is recorded as folded: afterwards, nothing could replace it."""
        collector = self._collectors[self.phase.work]
        try:
            self._updates[key] = self._update(key, collector)
        except UNREADABLE as error:
            # what the system cannot read now may be undamaged
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise StoreError(f"cannot read {describe(key)}: {error}") from error
            self._request_again(key, collector, error)
        else:
            self.handle(on.UpdateFolded(self.clock(), key))

    def _request_again(self, key: Key, collector: Collector, problem: object) -> None:
        """Wait again for an accepted update that was lost. Its agent is asked once it is idle."""
        self._lost[key] += 1
        if self._lost[key] > MAX_DAMAGED:
            raise StoreError(
                f"{describe(key)}: {problem}, for the {self._lost[key]}th time: check the disk"
            )
        log.error("%s: %s; it is requested again", describe(key), problem)
        self.inbox.remove(key)
        self.inbox.expect_also(key, collector.limit(self.round.tasks[key].task))
        self.handle(on.UpdateLost(self.clock(), key))

    def _prepare(self, agent: str) -> None:
        collector = self._collectors[self.phase.work]
        planned = collector.prepare(agent)
        self.inbox.expect_also(planned.task.key, collector.limit(planned.task))
        self._describe_checks([planned.task], collector)
        self.handle(on.TaskAdded(self.clock(), planned))

    def _snapshot(self) -> bool:
        """Write the current total and begin a segment of the journal after it. Return True if the
        disk took both.
        """
        try:
            made = self._collectors[self.phase.work].snapshot()
            if made is None or self.journal is None:
                return False
            self.journal.begin(
                Base(self.checkpoint, self.round, made.name, made.folded, made.digest)
            )
            self.journal.sweep()
        except StoreError as error:
            log.error("%s", error)
            return False
        return True

    def rebase(self) -> None:
        """Begin a segment with the current value and no total. Raises StoreError."""
        if self.journal is not None:
            self.journal.begin(Base(self.checkpoint, self.round))
            self.journal.sweep()

    def compact(self) -> None:
        """Begin a new segment of the journal if the current one has grown long."""
        if self.journal is None or (self.journal.records < LONG and self.journal.written < LARGE):
            return
        # if this fails, it is tried again after as many further events
        self.journal.records = self.journal.written = 0
        if self.round.plan is None:
            try:
                self.rebase()
            except StoreError as error:
                log.error("%s", error)
        elif self.phase.work == "train" and not self.phase.closed:
            self._snapshot()

    def _update(self, key: Key, collector: Collector) -> Update:
        """Return a checked update. Raises one of `UNREADABLE` if its file is missing or damaged."""
        if key in self._updates:
            return self._updates.pop(key)
        path = self.inbox.path(key)
        known = key in self._verified or self.inbox.local
        if not known and (problem := find_file_damage(path, self.round.tasks[key].digest)):
            raise Malformed(f"{path} {problem}")
        return self._read(self.round.tasks[key].task, path, collector)

    def _read(self, task: Task, path: Path, collector: Collector | None) -> Update:
        """Read an update. Without a collector, only its header is used."""
        codec = find_loaded_codec(task.codec)
        received = collector.received(task) if codec.changes and collector is not None else {}
        return self.inbox.read(path, codec, limit_size(task), received)

    def check(
        self, task: Task, path: Path, elapsed: float, examined: Examined | None = None
    ) -> Update:
        """Decode and check the update in a file. If it is folded with the next event, it isn't read
        again, or if a worker examined it just now, isn't verified again. elapsed: seconds since its
        task was sent. Raises WireError.
        """
        unused = self.round.tasks[task.key].outlasting  # it is not folded
        collector = None if unused else self._collectors[task.work]
        if examined is not None and collector is not None:
            check_match(task, examined.header)
            collector.accept(task, examined, elapsed)
            self._verified.add(task.key)
            return examined.header
        update = self._read(task, path, collector)
        check_match(task, update)
        if collector is None:
            return update
        collector.check(task, update, elapsed)
        self._updates[task.key] = update
        return update

    # ---- phases ----------------------------------------------------------------------------------

    def begin(self, began: on.PhaseBegan, collector: Collector) -> None:
        self._collectors[began.work] = collector
        limits = {one.task.key: collector.limit(one.task) for one in began.tasks}
        self.inbox.expect(limits, [state.key for state in list_carried_tasks(self.round)])
        self._describe_checks([one.task for one in began.tasks], collector)
        self.handle(began)

    def _describe_checks(self, tasks: Iterable[Task], collector: Collector) -> None:
        """Let workers, if there are any, check the updates of these tasks."""
        for task in tasks if self.inbox.workers is not None else ():
            if (check := collector.describe_check(task)) is not None:
                self.inbox.checks[task.key] = check

    def end(self) -> None:
        """Clean up after a phase has closed. The transfers of its probes continue."""
        carried = [state.key for state in list_carried_tasks(self.round)]
        self.inbox.expect({}, hold=carried)
        self.inbox.forget(TEMPORARY, keep=carried)
        self._collectors.pop(self.phase.work, None)  # frees its total

    def collect(self, work: Work, collector: Collector) -> None:
        """Use this collector for updates of this work from now on. Between trainings it collects
        late updates.
        """
        self._collectors[work] = collector

    def end_round(self, store: Store, done: RoundRecord) -> None:
        """Store a round, with the value that the journal continues from. Raises StoreError."""
        value, _ = step(self.round, on.RoundStored(self.clock()))
        self.checkpoint = store.save(done, value if self.journal is not None else None)
        self.round = value

    # ---- resuming after a restart ----------------------------------------------------------------

    def restore(self, round: Round) -> None:
        """Continue from a round that an earlier process recorded. Its rules apply until `resume`
        sets those of this process.
        """
        self._rules, self.round = self.round.rules, round

    def replay(self, event: on.RoundEvent, collector: Collector | None) -> None:
        """Repeat an event of an earlier process: update the value and the total, without carrying
        out actions. Raises StoreError if the file of a folded update is missing or damaged.
        """
        self.round, _ = step(self.round, event)
        if (
            isinstance(event, on.UpdateFolded)
            and collector is not None
            and self.phase.work == "train"
        ):
            try:
                update = self._update(event.key, collector)
            except UNREADABLE as error:
                raise StoreError(f"cannot read {describe(event.key)}: {error}") from error
            collector.fold(self.round.tasks[event.key], update)

    def resume(self, collector: Collector) -> None:
        """Finish after the replay: ask again for updates that the spool lost, and send again
        everything that is in progress.
        """
        if isinstance(self.clock, RunClock):
            self.clock.resume(self.round.now)
        self._collectors["train"] = collector
        open = {
            state.key: state
            for state in self.round.tasks.values()
            if state.open and state.key.work == "train"
        }
        self.inbox.expect({key: collector.limit(state.task) for key, state in open.items()})
        self._describe_checks([state.task for state in open.values()], collector)
        whole = [
            state.key
            for state in self.round.tasks.values()
            if state.stage in ("whole", "folding") and state.key.work == "train"
        ]
        for key in whole:
            if problem := find_problem(path := self.inbox.path(key), self.round.tasks[key].digest):
                self._request_again(key, collector, f"{path} {problem}")
        self.inbox.forget("round-*", keep=[*open, *whole, *self.round.unkept])
        self.handle(on.Resumed(self.clock(), self._rules))


def describe(key: Key) -> str:
    return f"the accepted update of {key.agent} in round {key.round}"


def is_binding(event: on.RoundEvent, action: Action) -> bool:
    """Return True if others rely on an action, or it cannot be undone, so that the event must be on
    disk first. Calibration and evaluation start again after a restart.
    """
    match action:
        case do.Ask(task) | do.Abort(task):
            return task.work == "train"
        case do.Forget(key):
            return key.work == "train"
        case do.Answer():
            return (
                not isinstance(event, on.UpdateCame | on.UpdateRefused) or event.key.work == "train"
            )
    return False
