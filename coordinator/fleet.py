"""The agents as the coordinator sees them: who is here, what they measured, what they are sent and what they send.

`Fleet` is the coordinator's half of the protocol. It folds nothing and decides nothing about rounds: `collect` yields
checked updates, in the order of agent names, until the round's tasks are settled, its quorum is met or its deadline
has passed. Tasks that may still be answered then are carried into later rounds.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coordinator.acceptance import check_match, check_profile
from coordinator.agent import Agent
from coordinator.collection import CARRIED, Check, Collection, Settled, concerns, key_of
from coordinator.inbox import Inbox, Key
from coordinator.leases import heard
from coordinator.shelf import Shelf
from federated.errors import Malformed, ProtocolMismatch, Refused, WireError
from federated.participant import JOINING
from federated.task import Profile, Task, Update
from federated.wire import messages, topics
from federated.wire.link import LINK_UP, Delivery, Link

__all__ = ["Fleet"]

log = logging.getLogger(__name__)

SILENCE = 45.0  # seconds: three missed heartbeats
OWING = 3.0  # seconds after which an idle agent is told its task again
LOOK = 0.5  # seconds between looks at leases, and at who could be asked besides
REVOKED = "its certificate was revoked"
TEMPORARY = "now"  # folder of the spool for updates that go as they are folded


class Fleet:
    """The coordinator's end of the link, for one run."""

    def __init__(
        self,
        link: Link,
        run: messages.Run,
        spool: Path,
        *,
        attempt: int = 1,
        slots: int = 8,
        chunk: int = 0,
        sync: bool = True,
        notify: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.link, self.run, self.attempt, self.notify, self.clock = link, run, attempt, notify, clock
        self.agents: dict[str, Agent] = {}
        self.refused = Counter[str]()  # what was not accepted, by kind (`coordinator.metrics.REFUSALS`)
        self.each_turn: Callable[[], None] = lambda: None
        self.folded: dict[str, int] = {}  # the last round of which each agent's update was folded
        self.accept: Callable[[Profile], str] = lambda profile: ""  # why an agent cannot take part, or nothing
        self.select: Callable[[Profile], str] = lambda profile: ""  # why one that could is not to, or nothing
        self.alive: Callable[[], None] = lambda: None  # hears of every turn
        self.barred: Callable[[], frozenset[str]] = frozenset  # the agents that were shut out; another set whenever they are others
        self._expelled: frozenset[str] = frozenset()
        self.inbox = Inbox(spool, slots, sync=sync)
        self.shelf = Shelf(link, run.run, spool, chunk)
        self.collection = Collection()
        self.late: dict[Key, Settled] = {}  # tasks of earlier rounds that may still be answered
        self._quiet = True  # whether all was heard that agents said
        self._looked = -LOOK  # when leases were looked at last

    # ---- life ------------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Listens to agents and publishes the run's card, by which they find and measure themselves."""
        for pattern in topics.coordinator_patterns(self.run.run):
            self.link.subscribe(pattern)
        self._publish_card()

    def reannounce(self, run: messages.Run) -> None:
        """Publishes a card that says more than the last: agents measure themselves anew by it."""
        self.run = run
        for agent in self.agents.values():
            agent.profile = None
        self._publish_card()

    def await_return(self, profiles: Mapping[str, Profile]) -> None:
        """Counts agents that an earlier coordinator knew as here, until they have been silent for long enough to be gone."""
        for name, profile in profiles.items():
            self.agents.setdefault(name, Agent(name, online=True, seen=self.clock(), profile=profile))

    def admit(self, accept: Callable[[Profile], str]) -> None:
        """From now on, agents that `accept` finds unfit (it says why) are turned away, those that are here included."""
        self.accept = accept
        for agent in list(self.agents.values()):
            if agent.profile is not None:
                self._admit(agent, agent.profile)

    def dismiss(self, reason: str) -> None:
        """Ends the run for everyone; of the run, only this word stays retained."""
        self.shelf.clear()
        goodbye = messages.encode(messages.Goodbye(reason))
        self.link.publish(topics.everyone(self.run.run), goodbye)
        self.link.publish(topics.run(self.run.run), goodbye, retain=True)  # in the card's place: who was away hears it on return
        for name in self.agents:
            self.link.publish(topics.profile(self.run.run, name), b"", retain=True)
            self.link.publish(topics.status(self.run.run, name), b"", retain=True)

    def withdraw(self) -> None:
        """Goes without ending the run: nobody can join meanwhile, and the agents wait for a coordinator that resumes."""
        self.shelf.clear()
        self.link.publish(topics.run(self.run.run), b"", retain=True)

    def _publish_card(self) -> None:
        self.link.publish(topics.run(self.run.run), messages.encode(self.run), retain=True)

    def ready(self) -> list[Agent]:
        """The agents that can be asked, by name."""
        return sorted((a for a in self.agents.values() if a.ready), key=lambda a: a.name)

    def free(self) -> list[Agent]:
        """Those of them that are not at work on a task of an earlier round."""
        busy = {entry.task.agent for entry in self.late.values() if entry.open}
        return [agent for agent in self.ready() if agent.name not in busy]

    def turn(self, timeout: float) -> None:
        """Handles one delivery, if one comes in time, and notices who has gone silent."""
        self.each_turn()
        self.alive()
        if (barred := self.barred()) is not self._expelled:
            self._expel(barred)
        delivery = self.link.receive(timeout)
        self._quiet = delivery is None
        if delivery is not None:
            try:
                self._hear(delivery)
            except WireError as error:
                self._reject_message(delivery.topic, error)
        now = self.clock()
        if delivery is None:  # only now is everything heard that was said while somebody computed
            for agent in self.agents.values():
                if agent.online and now - agent.seen > SILENCE:
                    self._lose(agent, f"silent for {SILENCE:.0f} s")
        for name, grant in self.inbox.grants(now):
            self._command(name, grant)

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def collect(
        self,
        tasks: Sequence[Task],
        *,
        quorum: int,
        deadline: float,
        check: Check,
        size: Callable[[Task], int],
        folder: str = "",
        settled: Mapping[tuple[str, int], str] | None = None,
        more: Callable[[Collection], Sequence[Task]] = lambda collection: (),
        carry: Callable[[Settled], bool] | None = None,
        flowing: bool = False,
        waiting: int = 0,
    ) -> Iterator[tuple[Settled, Update]]:
        """Sends the tasks and yields their updates, each once, checked by `check` (which raises Refused), in the order of agent names.

        An update is kept in the spool until all earlier names are settled, so that sums of floats repeat bit for bit.
        Ends when `quorum` updates are in, when every task is settled, or after `deadline` seconds.
        size: largest acceptable encoding of a task's update, bytes.
        folder: below the spool, where the updates stay until the caller forgets them; without one they go as they are yielded.
        settled: outcomes by agent and round, of an earlier coordinator that sent the same tasks; what it received whole is not asked for again.
        more: tasks for agents that are to be asked besides, looked for whenever something may have changed.
        carry: which tasks stay open in later rounds when this one closes. With it, what was carried so far is collected too.
        flowing: updates are yielded as they come, and those that were carried count for the quorum.
        waiting: how many updates may wait in the spool for earlier names; 0: any number.
        """
        carried = self.late if carry is not None else {}
        self.collection = Collection(tasks, check, self.clock(), folder, settled, carried.values(), flowing=flowing, waiting=waiting)
        self.late = {} if carry is not None else self.late
        self._expect([entry for entry in self.collection.entries.values() if not entry.carried], size, hold=(*carried, *self.late))
        self.collection.begin_anew()
        yield from self._await(quorum, self.clock() + deadline, more, size)
        self._close(carry)  # not where it was interrupted: the agents go on, for whoever resumes

    def restore(self, tasks: Iterable[Task], check: Callable[[Task], Check], folder: Callable[[int], str], size: Callable[[Task], int]) -> None:
        """Takes up the tasks of earlier rounds that an earlier coordinator carried. folder: below the spool, where a round's updates lie."""
        for task in tasks:
            entry = Settled(task, self.clock(), check(task), resumed=True, carried=True)
            self.late[key_of(task)] = entry
            for path in self.inbox.expect({key_of(task): size(task)}, folder(task.round), hold=tuple(self.late)).values():
                self._find(entry, path)

    def _expect(self, entries: Sequence[Settled], size: Callable[[Task], int], hold: Sequence[Key]) -> None:
        """Makes ready to receive what is asked for, beside what is awaited already, takes up what lies in the spool, and asks for the rest."""
        limits = {key_of(entry.task): size(entry.task) for entry in entries}
        there = self.inbox.expect(limits, self.collection.folder or TEMPORARY, hold)
        for key, path in there.items():
            self._find(self.collection.entries[key], path)
        for entry in entries:
            agent = self.agents[entry.task.agent]
            entry.lost, entry.lost_at, agent.submodel = not agent.online, self.clock(), entry.task.submodel.name
            if entry.open:
                self._command(agent.name, entry.task)

    def _find(self, entry: Settled, path: Path) -> None:
        """Takes up what lies in the spool: of the same tasks it was received before, of others it is nothing."""
        try:
            if not entry.resumed or entry.outcome not in ("", CARRIED, "folded"):
                raise Refused("it belongs to an earlier task")
            if entry.outcome != "folded":
                self._check(entry, path)
                entry.update, entry.digest = path, digest(path)
        except WireError as error:
            log.info("dropped %s of %s: %s", path.name, entry.task.agent, error)
            path.unlink()

    def _await(
        self, quorum: int, until: float, more: Callable[[Collection], Sequence[Task]], size: Callable[[Task], int]
    ) -> Iterator[tuple[Settled, Update]]:
        closing = not self.collection.entries
        while not closing:
            self.turn(max(0.0, min(0.2, until - self.clock())))
            self._look(more, size)
            closing = self.collection.complete(quorum, self.clock()) or self.clock() >= until
            for entry in self.collection.next(closing=closing):
                yield entry, self._take(entry)

    def _take(self, entry: Settled) -> Update:
        assert entry.update is not None
        update = self.inbox.read(entry.update)
        if not self.collection.folder:
            entry.update.unlink()
        entry.outcome = "folded"
        return update

    def _look(self, more: Callable[[Collection], Sequence[Task]], size: Callable[[Task], int]) -> None:
        """Now and then, and whenever somebody came or went: whose lease is over, and who is to be asked besides."""
        now = self.clock()
        if now - self._looked < LOOK:
            return
        self._looked = now
        for entry in self.collection.watch(now, self.inbox.engaged(now)) if self._quiet else []:  # else some may have said what we did not hear yet
            log.warning("%s shows no progress %.0f s after it was asked: nobody waits for it any more", entry.task.agent, now - entry.started)
        if added := more(self.collection):
            hold = (*self.collection.entries, *self.late)
            self._expect(self.collection.add(added, now), size, hold)

    def _close(self, carry: Callable[[Settled], bool] | None) -> None:
        dropped, carried = self.collection.close(carry or (lambda entry: False))
        for entry in dropped:
            reason = "its weights are too old" if entry.outcome == "stale" else f"round {entry.task.round} is closed"
            self._command(entry.task.agent, messages.Abort(entry.task.round, entry.task.attempt, reason))
        self.late |= {key_of(entry.task): entry for entry in carried}
        self.inbox.expect({}, hold=tuple(self.late))
        self.inbox.forget(TEMPORARY)
        self.notify()

    # ---- hearing ---------------------------------------------------------------------------------------------------

    def _hear(self, delivery: Delivery) -> None:
        if delivery.topic == LINK_UP:  # a broker that restarted may have forgotten what it retained
            self._publish_card()
            self.shelf.restock()
        where = topics.parse(delivery.topic)
        if where is None or not where.agent or not delivery.payload or where.agent in self._expelled:
            return
        message = messages.decode(delivery.payload)
        if isinstance(message, messages.Echo) and message.agent == where.agent:  # of a device that only tries the way (edge-agent doctor)
            self._command(where.agent, replace(message, time=time.time()))
            return
        agent = self.agents.setdefault(where.agent, Agent(where.agent))
        if getattr(message, "agent", agent.name) != agent.name:
            raise Refused(f"a message of '{getattr(message, 'agent', '')}' came on a topic of '{agent.name}'")
        agent.seen = self.clock()
        match message:
            case messages.Status() as status:
                self._meet(agent, status)
            case Profile() as profile:
                self._admit(agent, profile)
            case messages.Heartbeat() as beat:
                self._feel(agent, beat)
            case messages.Offer() as offer:
                self._welcome(agent, offer)
            case messages.Chunk() as chunk:
                self._receive(agent, chunk)
            case messages.Failure() as failure:
                self._fail(agent, failure)
            case _:
                raise Refused(f"agents do not send {type(message).__name__}")
        self.notify()

    def _meet(self, agent: Agent, status: messages.Status) -> None:
        if not status.online:
            if agent.session in ("", status.session):
                self._lose(agent, "went away")
            return
        returned, known = agent.session not in ("", status.session), agent.online
        agent.session, agent.online, agent.paused = status.session, True, status.paused
        if not known or returned:
            log.info("%s %s", agent.name, "started anew" if returned else "came", extra={"event": "came", "agent": agent.name})
        self._stir()
        for entry in self._of(agent.name):
            entry.lost = False
            if entry.open:
                self._command(agent.name, entry.task)  # it may not know of its task, and takes it only once

    def _feel(self, agent: Agent, beat: messages.Heartbeat) -> None:
        """A sign of life; an idle agent that still owes an update never heard of its task, or its answer was lost."""
        agent.state, agent.loss = beat.state, beat.loss
        if beat.session != agent.session:
            return
        returned, agent.online = not agent.online, True
        for entry in self._of(agent.name):
            entry.lost = False
            entry.lease = heard(entry.lease, (beat.state, beat.step), agent.seen)
            if entry.open and (returned or (beat.state == "idle" and self.clock() - entry.started > OWING)):
                self._command(agent.name, entry.task)  # taken only once, however often it is said

    def _admit(self, agent: Agent, profile: Profile) -> None:
        check_profile(profile, self.run)
        agent.profile, agent.refused, agent.excluded = profile, self.accept(profile), self.select(profile)
        if agent.refused:
            log.warning("%s cannot take part: %s", agent.name, agent.refused, extra={"event": "turned away", "agent": agent.name})
            self.refused["joining"] += 1
            self._command(agent.name, messages.Refusal(agent.refused, JOINING))

    def _lose(self, agent: Agent, why: str) -> None:
        log.warning("%s %s", agent.name, why, extra={"event": "went", "agent": agent.name})
        agent.online, agent.state = False, "gone"
        for entry in self._of(agent.name):
            entry.lost, entry.lost_at = True, self.clock()
        self._stir()
        self.notify()

    def _expel(self, barred: frozenset[str]) -> None:
        """Hears and asks agents no more whose certificates were revoked, and folds nothing of theirs; one that enrolled anew may come back."""
        self._expelled = barred
        for agent in self.agents.values():
            if agent.name not in barred:
                agent.refused = "" if agent.refused == REVOKED else agent.refused
            elif agent.refused != REVOKED:
                agent.refused, agent.profile = REVOKED, None
                for entry in self._of(agent.name):
                    if entry.outcome:
                        continue  # what was folded stays in the sum
                    if entry.update is not None:
                        entry.update.unlink(missing_ok=True)
                    entry.update, entry.outcome = None, f"refused: {REVOKED}"
                self._lose(agent, REVOKED)

    def _of(self, agent: str) -> list[Settled]:
        """All that an agent was asked for and that may still come."""
        return [*self.collection.of(agent), *(entry for (name, *_), entry in self.late.items() if name == agent)]

    def _about(self, agent: str, about: messages.Offer | messages.Failure) -> Settled | None:
        """What a message is about; None where no such update was asked for."""
        late = self.late.get((agent, about.submodel, about.round))
        return self.collection.find(agent, about) or (late if late is not None and concerns(about, late.task) else None)

    def _stir(self) -> None:
        """Something changed for which others may have to be asked: that is looked at next."""
        self._looked = -LOOK

    def _fail(self, agent: Agent, failure: messages.Failure) -> None:
        entry = self._about(agent.name, failure)
        if entry is not None and entry.open:
            self._stir()
            entry.outcome = f"{'paused' if failure.paused else 'failed'}: {failure.reason}"
            fields = {"event": "failed", "agent": agent.name, "submodel": failure.submodel, "outcome": entry.outcome}
            log.warning("%s at %s: %s", agent.name, failure.submodel, entry.outcome, extra=fields)

    def _welcome(self, agent: Agent, offer: messages.Offer) -> None:
        entry = self._about(agent.name, offer)
        if entry is None:
            self.refused["unasked"] += 1
            self._receipt(agent.name, offer.manifest.transfer, False, f"round {offer.round} of attempt {offer.attempt} awaits no such update")
        elif entry.update is not None or entry.outcome == "folded":
            self._receipt(agent.name, offer.manifest.transfer, True, "already there")
        elif entry.outcome:
            self._receipt(agent.name, offer.manifest.transfer, False, entry.outcome)
        else:
            try:
                self._command(agent.name, self.inbox.open(agent.name, offer, self.clock()))
            except Refused as error:
                self._refuse(agent.name, entry, offer.manifest.transfer, str(error), "size")

    def _receive(self, agent: Agent, chunk: messages.Chunk) -> None:
        finished = self.inbox.take(agent.name, chunk, self.clock())
        if finished is None:
            for owed in self._of(agent.name):
                owed.lease = heard(owed.lease, ("chunk", chunk.index), agent.seen)
            return
        offer, path = finished
        entry = self._about(agent.name, offer)
        if entry is None or not entry.open:
            path.unlink(missing_ok=True)
            return
        try:
            update = self._check(entry, path)
        except WireError as error:
            path.unlink(missing_ok=True)
            self._refuse(agent.name, entry, chunk.transfer, str(error))
            return
        entry.update, entry.digest, entry.seconds = path, offer.manifest.sha256, self.clock() - entry.started
        self._stir()
        if update.work == "train":
            agent.loss = float(update.notes["loss"])
        self._receipt(agent.name, chunk.transfer, True, "")

    def _check(self, entry: Settled, path: Path) -> Update:
        update = self.inbox.read(path)
        check_match(entry.task, update)
        entry.check(entry, update)
        return update

    # ---- answering -------------------------------------------------------------------------------------------------

    def _refuse(self, agent: str, entry: Settled, transfer: str, reason: str, kind: str = "update") -> None:
        entry.outcome = f"refused: {reason}"
        self.refused[kind] += 1
        self._stir()
        self._receipt(agent, transfer, False, reason)

    def _receipt(self, agent: str, transfer: str, accepted: bool, reason: str) -> None:
        if not accepted:
            log.warning("refused from %s: %s", agent, reason, extra={"event": "refused", "agent": agent, "transfer": transfer})
        self._command(agent, messages.Receipt(transfer, accepted, reason))

    def _reject_message(self, topic: str, error: WireError) -> None:
        where = topics.parse(topic)
        name = where.agent if where is not None else None
        log.warning("refused from %s: %s", topic, error, extra={"event": "refused", "agent": name, "topic": topic})
        self.refused[{ProtocolMismatch: "protocol", Malformed: "malformed"}.get(type(error), "message")] += 1
        if name:
            self._command(name, messages.Refusal(str(error), topic))

    def _command(self, agent: str, message: messages.Message) -> None:
        self.link.publish(topics.command(self.run.run, agent), messages.encode(message))


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
