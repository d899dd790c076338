"""The driver of a round: hands events to `step`, writes them down, and does the actions."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

from coordinator.fleet.endpoint import Endpoint
from coordinator.fleet.inbox import TEMPORARY, Inbox
from coordinator.fleet.run_clock import RunClock
from coordinator.observe.events import Publish, Rejected
from coordinator.observe.records import RoundRecord
from coordinator.round import actions as do
from coordinator.round import round_events as on
from coordinator.round.actions import Action
from coordinator.round.collector import Collector
from coordinator.round.round import Phase, Round, Rules, carried
from coordinator.round.step import step
from coordinator.store.journal import REMEDY, Base, Journal
from coordinator.store.store import Store
from coordinator.trust.acceptance import check_match
from federated.errors import Malformed, Refused, StoreError, WireError
from federated.task import Key, Task, Update, Work
from federated.wire import messages
from federated.wire.codecs.catalogue import codec
from federated.wire.messages import JOINING

__all__ = ["Driver"]

log = logging.getLogger(__name__)

LONG = 100_000  # events after which the journal begins a new segment
LARGE = 2**24  # bytes of them after which it does
HEARD = (  # events that others repeat
    on.AgentBeat,
    on.AgentConnected,
    on.AgentLeft,
    on.AgentsBarred,
    on.ChunkCame,
    on.ProfileCame,
    on.SpoolFilled,
    on.TaskFailed,
    on.Ticked,
    on.UpdateCame,
    on.UpdateOffered,
    on.UpdateRefused,
)
AT_HAND = 8  # checked updates that stay mapped until they are folded; others are read again


class Driver:
    """Holds the round, and does what it asks for.

    endpoint: tells agents. inbox: takes updates in. journal: where events are written before
    anything follows from them; None: an interrupted round begins anew. checkpoint: round and sha256
    of the last one. deaf: whether the journal has no room.
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
        self.checkpoint, self.deaf = "", False
        self._collectors: dict[Work, Collector] = {}
        self._updates: dict[Key, Update] = {}  # checked and not folded yet, as views of their files
        self._events: deque[on.RoundEvent] = deque()

    @property
    def phase(self) -> Phase:
        assert self.round.phase is not None, "no phase has begun"
        return self.round.phase

    # ---- events ----------------------------------------------------------------------------------

    def take(self, event: on.RoundEvent) -> None:
        """Steps the round with an event, does the actions, and repeats with the events that they
        cause. Raises StoreError.
        """
        self._events.append(event)
        if len(self._events) > 1:
            return  # one is being handled, of which this one is a consequence
        try:
            while self._events:
                self._take(self._events[0])
                self._events.popleft()
        except BaseException:
            self._events.clear()
            raise

    def _take(self, event: on.RoundEvent) -> None:
        """Writes the event before acting on it. An event that cannot be written is dropped if its
        sender will repeat it.
        """
        after, actions = step(self.round, event)
        if after is not self.round and self.journal is not None and self.journal.recording:
            try:
                self.journal.append(event)
            except StoreError as error:
                if isinstance(event, HEARD):
                    self._hear_nothing(error)
                    return
                # that it failed need not be known later
                if not (isinstance(event, on.SnapshotTaken) and not event.written):
                    raise
        self.round = after
        self._hear_again()
        if self.journal is not None and any(promises(event, action) for action in actions):
            self.journal.sync()
        if isinstance(event, on.UpdateFolded):
            self._collectors[self.phase.work].fold(
                self.round.tasks[event.key], self._update(event.key)
            )
        for action in actions:
            self._do(action)

    def _hear_nothing(self, error: StoreError) -> None:
        """Stops the clock while the journal has no room, so that agents that cannot be heard do not
        become late.
        """
        if not self.deaf:
            log.error("%s; nothing is heard until there is room", error)
        self.deaf = True
        if isinstance(self.clock, RunClock):
            self.clock.still = True

    def _hear_again(self) -> None:
        """Catches up once there is room again: agents say only once that they are online, and what
        they measured.
        """
        if not self.deaf:
            return
        self.deaf = False
        self.endpoint.listen()
        if isinstance(self.clock, RunClock):
            self.clock.still = False

    # ---- what the round asks for -----------------------------------------------------------------

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
            case do.TurnAway(agent, reason):
                self.endpoint.tell(agent, messages.Refusal(reason, JOINING))
            case do.Prepare(agent):
                self._prepare(agent)
            case do.Fold(key):
                self.take(on.UpdateFolded(self.clock(), key))
            case do.Snapshot(keys):
                written = self._snapshot()
                self.take(on.SnapshotTaken(self.clock(), keys if written else (), written))
            case do.Forget(key):
                self._updates.pop(key, None)
                self.inbox.remove(key)
            case do.Relieve(made):
                self.inbox.relieved(made)
            case do.Report(event):
                self.publish(event)

    def _receive(self, agent: str, offer: messages.Offer) -> None:
        try:
            self.endpoint.tell(agent, self.inbox.open(agent, offer, self.clock()))
        except Refused as error:
            key = Key(agent, offer.submodel, offer.round, offer.work)
            self.take(
                on.UpdateRefused(
                    self.clock(), key, offer.attempt, offer.manifest.transfer, str(error), "size"
                )
            )

    def _prepare(self, agent: str) -> None:
        collector = self._collectors[self.phase.work]
        planned = collector.prepare(agent)
        self.inbox.expect_also(planned.task.key, collector.limit(planned.task))
        self.take(on.TaskAdded(self.clock(), planned))

    def _snapshot(self) -> bool:
        """Begins a segment of the journal behind the total as it is; whether the disk took both."""
        try:
            made = self._collectors[self.phase.work].snapshot()
            if made is None or self.journal is None:
                return False
            self.journal.begin(Base(self.checkpoint, self.round, made.name, made.folded))
            self.journal.sweep()
        except StoreError as error:
            log.error("%s", error)
            return False
        return True

    def rebase(self) -> None:
        """Begins a segment from the present value, to which no total belongs. Raises StoreError."""
        if self.journal is not None:
            self.journal.begin(Base(self.checkpoint, self.round))
            self.journal.sweep()

    def compact(self) -> None:
        """Begins a new segment of the journal, if the present one has grown long."""
        if self.journal is None or (self.journal.records < LONG and self.journal.written < LARGE):
            return
        # where it fails, it is tried again after as many
        self.journal.records = self.journal.written = 0
        if self.round.plan is None:
            try:
                self.rebase()
            except StoreError as error:
                log.error("%s", error)
        elif self.phase.work == "train" and not self.phase.closed:
            self._snapshot()

    def _update(self, key: Key) -> Update:
        """A checked update. Raises StoreError where its file is gone or damaged."""
        if key in self._updates:
            return self._updates.pop(key)
        path = self.inbox.path(key)
        try:
            if digest_of(path) != self.round.tasks[key].digest:
                raise Malformed(f"{path} is not what was accepted")
            return self.inbox.read(path, codec(self.round.tasks[key].task.codec))
        except (OSError, ValueError, WireError) as error:
            what = f"the update of {key.agent} in round {key.round}, which was accepted"
            raise StoreError(f"{what}, cannot be read: {error}; {REMEDY}") from error

    def check(self, task: Task, path: Path, elapsed: float) -> Update:
        """The update in a file, decoded once and checked once. elapsed: seconds since it was asked
        for. Raises WireError.
        """
        update = self.inbox.read(path, codec(task.codec))
        check_match(task, update)
        self._collectors[task.work].check(task, update, elapsed)
        self._updates[task.key] = update
        while len(self._updates) > AT_HAND:  # a mapped file costs its pages and a descriptor
            self._updates.pop(next(iter(self._updates)))
        return update

    # ---- phases ----------------------------------------------------------------------------------

    def begin(self, began: on.PhaseBegan, collector: Collector) -> None:
        self._collectors[began.work] = collector
        limits = {one.task.key: collector.limit(one.task) for one in began.tasks}
        self.inbox.expect(limits, [state.key for state in carried(self.round)])
        self.take(began)

    def end(self) -> None:
        """After a phase has closed."""
        self.inbox.expect({}, hold=[state.key for state in carried(self.round)])
        self.inbox.forget(TEMPORARY)
        self._collectors.pop(self.phase.work, None)  # and with it the total

    def collect(self, work: Work, collector: Collector) -> None:
        """From now on this collects updates of such work; between trainings, late ones."""
        self._collectors[work] = collector

    def end_round(self, store: Store, done: RoundRecord) -> None:
        """Stores a round, with the value that the journal goes on from. Raises StoreError."""
        value, _ = step(self.round, on.RoundStored(self.clock()))
        self.checkpoint = store.save(done, value if self.journal is not None else None)
        self.round = value

    # ---- another process -------------------------------------------------------------------------

    def restore(self, round: Round) -> None:
        """Goes on from a value that an earlier process wrote down, by its rules until `resume`."""
        self._rules, self.round = self.round.rules, round

    def replay(self, event: on.RoundEvent, collector: Collector | None) -> None:
        """An event of an earlier process: the value follows from it, and so does the total; nothing
        is done once more.
        """
        self.round, _ = step(self.round, event)
        if (
            isinstance(event, on.UpdateFolded)
            and collector is not None
            and self.phase.work == "train"
        ):
            collector.fold(self.round.tasks[event.key], self._update(event.key))

    def resume(self, collector: Collector) -> None:
        """After the replay: asks again for updates that the spool lost, and says again all that is
        under way.
        """
        if isinstance(self.clock, RunClock):
            self.clock.go_on(self.round.now)
        self._collectors["train"] = collector
        open = {
            state.key: state
            for state in self.round.tasks.values()
            if state.open and state.key.work == "train"
        }
        self.inbox.expect({key: collector.limit(state.task) for key, state in open.items()})
        whole = [
            state.key
            for state in self.round.tasks.values()
            if state.stage in ("whole", "folding") and state.key.work == "train"
        ]
        for key in whole:
            if digest_of(self.inbox.path(key)) != self.round.tasks[key].digest:
                log.error(
                    "the update of %s in round %d is gone or damaged in the spool, and "
                    "asked for again",
                    key.agent,
                    key.round,
                )
                self.inbox.remove(key)
                self.inbox.expect_also(key, collector.limit(self.round.tasks[key].task))
                self.take(on.UpdateLost(self.clock(), key))
        self.inbox.forget("round-*", keep=[*open, *whole, *self.round.unkept])
        self.take(on.Resumed(self.clock(), self._rules))


def promises(event: on.RoundEvent, action: Action) -> bool:
    """Whether others act upon an action, or it cannot be taken back. Calibration and evaluation
    begin anew in another process.
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


def digest_of(path: Path) -> str:
    """The sha256 of a file; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
