"""The agents as the coordinator sees them: who is here, what they measured, what they are sent and what they send.

`Fleet` is the coordinator's half of the protocol. It folds nothing and decides nothing about rounds: `collect` yields
checked updates, in the order of agent names, until the round's tasks are settled, its quorum is met or its deadline
has passed. Tasks that may still be answered then are carried into later rounds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coordinator.acceptance import check_profile
from coordinator.agent import Agent
from coordinator.collection import Check, Collection, Settled
from coordinator.inbox import Inbox, Key
from coordinator.leases import heard
from coordinator.observe.events import AgentCame, AgentTurnedAway, AgentWent, FleetChanged, LeaseExpired, Publish, Turned
from coordinator.reception import Reception
from coordinator.shelf import Shelf
from federated.errors import LinkError, Refused, WireError
from federated.participant import JOINING
from federated.task import Profile, Task, Update
from federated.wire import envelope, messages, topics
from federated.wire.link import LINK_UP, Delivery, Link

__all__ = ["Fleet"]

log = logging.getLogger(__name__)

SILENCE = 45.0  # seconds: three missed heartbeats
OWING = 3.0  # seconds after which an idle agent is told its task again
LOOK = 0.5  # seconds between looks at leases, and at who could be asked besides
RELIEF = 1.0  # seconds between tries to make room in a full spool: some updates then leave it together
FAREWELL = 60.0  # seconds that the end of a run waits for the broker, across reconnections
STOPPING = 5.0  # seconds that a coordinator waits for the broker when it is stopped
REVOKED = "its certificate was revoked"


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
        publish: Publish = lambda event: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.link, self.run, self.attempt, self.publish, self.clock = link, run, attempt, publish, clock
        self.agents: dict[str, Agent] = {}
        self.each_turn: Callable[[], None] = lambda: None
        self.folded: dict[str, int] = {}  # the last round of which each agent's update was folded
        self.accept: Callable[[Profile], str] = lambda profile: ""  # why an agent cannot take part, or nothing
        self.select: Callable[[Profile], str] = lambda profile: ""  # why one that could is not to, or nothing
        self.barred: Callable[[], frozenset[str]] = frozenset  # the agents that were shut out; another set whenever they are others
        self._expelled: frozenset[str] = frozenset()
        self.reception = Reception(Inbox(spool, slots, sync=sync), self.agents, self._command, publish, clock)
        self.inbox = self.reception.inbox
        self.shelf = Shelf(link, run.run, spool, chunk)
        self._dismissed = False
        self._quiet = True  # whether all was heard that agents said
        self._looked = -LOOK  # when leases were looked at last
        self._relieved = -RELIEF  # when room was made last

    @property
    def collection(self) -> Collection:
        """The tasks of the present round or evaluation, or of the last one."""
        return self.reception.collection

    @property
    def late(self) -> dict[Key, Settled]:
        """Tasks of earlier rounds that may still be answered."""
        return self.reception.late

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

    def dismiss(self, reason: str, patience: float = 0.0) -> None:
        """End the run for all agents. Only the goodbye stays retained; its delivery is awaited, since agents without it would wait for ever.

        patience: seconds that agents have to sign off, for a broker that may end with the coordinator, before it delivered what it acknowledged.
        """
        self._dismissed = True
        try:
            goodbye = envelope.encode(messages.Goodbye(reason))
            self.link.publish(topics.everyone(self.run.run), goodbye)
            self.link.publish(topics.run(self.run.run), goodbye, retain=True)  # in the card's place: agents that are away hear it when they return
            if not self.link.flush(FAREWELL):
                raise LinkError(f"the broker did not acknowledge it within {FAREWELL:.0f} s")
            self._await_departures(time.monotonic() + patience)
            self.shelf.clear()
            for name in self.agents:
                self.link.publish(topics.profile(self.run.run, name), b"", retain=True)
                self.link.publish(topics.status(self.run.run, name), b"", retain=True)
            self.link.flush(FAREWELL)
        except LinkError as error:  # the run is over all the same
            log.warning("the end of the run could not be sent (%s): agents may keep waiting; stop them by hand", error)

    def _await_departures(self, until: float) -> None:
        """Wait until every agent that is online took its retained status away."""
        here = {name for name, agent in self.agents.items() if agent.online}
        while here and time.monotonic() < until:
            delivery = self.link.receive(0.05)
            where = topics.parse(delivery.topic) if delivery is not None and not delivery.payload else None
            if where is not None and where.kind == "status":
                here.discard(where.agent or "")

    def withdraw(self) -> None:
        """Leave without ending the run: nobody can join meanwhile, and the agents wait for a coordinator that resumes. Nothing after `dismiss`."""
        if self._dismissed:
            return
        self.link.publish(topics.run(self.run.run), b"", retain=True)
        if self.link.flush(STOPPING):  # a full queue would block the person who stops the coordinator
            self.shelf.clear()

    def _publish_card(self) -> None:
        self.link.publish(topics.run(self.run.run), envelope.encode(self.run), retain=True)

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
        self.publish(Turned())
        if (barred := self.barred()) is not self._expelled:
            self._expel(barred)
        delivery = self.link.receive(timeout)
        self._quiet = delivery is None
        if delivery is not None:
            try:
                self._hear(delivery)
            except WireError as error:
                self.reception.reject(delivery.topic, error)
        now = self.clock()
        if delivery is None:  # only now is everything heard that was said while somebody computed
            for agent in self.agents.values():
                if agent.online and now - agent.seen > SILENCE:
                    self._lose(agent, f"silent for {SILENCE:.0f} s")
        for name, grant in self.inbox.grants(now, quiet=delivery is None):
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
        relieve: Callable[[], bool] = lambda: False,
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
        relieve: removes what was yielded from a full spool; whether there was any. Where an update finds no room there, none waits for earlier names.
        """
        carried = self.late if carry is not None else {}
        self.reception.collection = Collection(tasks, check, self.clock(), folder, settled, carried.values(), flowing=flowing, waiting=waiting)
        self.reception.late = {} if carry is not None else self.late
        self.reception.expect([entry for entry in self.collection.entries.values() if not entry.carried], size, hold=(*carried, *self.late))
        self.collection.begin_anew()
        self.reception.stir()  # what lay in the spool waits for nobody
        yield from self._await(quorum, self.clock() + deadline, more, size, relieve)
        self.reception.close(carry)  # not where it was interrupted: the agents go on, for whoever resumes
        self.publish(FleetChanged())

    def _await(
        self,
        quorum: int,
        until: float,
        more: Callable[[Collection], Sequence[Task]],
        size: Callable[[Task], int],
        relieve: Callable[[], bool],
    ) -> Iterator[tuple[Settled, Update]]:
        closing = not self.collection.entries
        while not closing:
            self.turn(max(0.0, min(0.2, until - self.clock())))
            over = self.clock() >= until
            if not self._look(more, size) and not over:
                continue  # of a thousand agents each chunk is no reason to go through all their tasks
            closing = over or self.collection.complete(quorum, self.clock())
            for entry in self.collection.next(closing=closing or self.inbox.full):
                yield entry, self.reception.take(entry)
            if self.inbox.full and self.clock() - self._relieved >= RELIEF:
                self._relieved = self.clock()
                self.inbox.relieved(relieve())

    def _look(self, more: Callable[[Collection], Sequence[Task]], size: Callable[[Task], int]) -> bool:
        """Now and then, and whenever something came of a task: whose lease is over, and who is to be asked besides; False where it is not time to."""
        now = self.clock()
        if now - self._looked < LOOK and not self.reception.stirred:
            return False
        self._looked, self.reception.stirred = now, False
        for entry in self.collection.watch(now, self.inbox.engaged(now)) if self._quiet else []:  # else some may have said what we did not hear yet
            self.publish(LeaseExpired(entry.task.agent, now - entry.started))
        if added := more(self.collection):
            hold = (*self.collection.entries, *self.late)
            self.reception.expect(self.collection.add(added, now), size, hold)
        return True

    # ---- hearing ---------------------------------------------------------------------------------------------------

    def _hear(self, delivery: Delivery) -> None:
        if delivery.topic == LINK_UP:  # a broker that restarted may have forgotten what it retained
            self._publish_card()
            self.shelf.restock()
        where = topics.parse(delivery.topic)
        if where is None or not where.agent or not delivery.payload or where.agent in self._expelled:
            return
        message = envelope.decode(delivery.payload)
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
                self.reception.welcome(agent, offer)
            case messages.Chunk() as chunk:
                self.reception.receive(agent, chunk)
            case messages.Failure() as failure:
                self.reception.fail(agent, failure)
            case _:
                raise Refused(f"agents do not send {type(message).__name__}")
        self.publish(FleetChanged())

    def _meet(self, agent: Agent, status: messages.Status) -> None:
        if not status.online:
            if agent.session in ("", status.session):
                self._lose(agent, "went away")
            return
        returned, known = agent.session not in ("", status.session), agent.online
        agent.session, agent.online, agent.paused = status.session, True, status.paused
        if not known or returned:
            self.publish(AgentCame(agent.name, restarted=returned))
        self.reception.stir()
        for entry in self.reception.of(agent.name):
            entry.lost = False
            if entry.open:
                self._command(agent.name, entry.task)  # it may not know of its task, and takes it only once

    def _feel(self, agent: Agent, beat: messages.Heartbeat) -> None:
        """A sign of life; an idle agent that still owes an update never heard of its task, or its answer was lost."""
        agent.state, agent.loss = beat.state, beat.loss
        if beat.session != agent.session:
            return
        returned, agent.online = not agent.online, True
        for entry in self.reception.of(agent.name):
            entry.lost = False
            entry.lease = heard(entry.lease, (beat.state, beat.step), agent.seen)
            if entry.open and (returned or (beat.state == "idle" and self.clock() - entry.started > OWING)):
                self._command(agent.name, entry.task)  # taken only once, however often it is said

    def _admit(self, agent: Agent, profile: Profile) -> None:
        check_profile(profile, self.run)
        agent.profile, agent.refused, agent.excluded = profile, self.accept(profile), self.select(profile)
        if agent.refused:
            self.publish(AgentTurnedAway(agent.name, agent.refused))
            self._command(agent.name, messages.Refusal(agent.refused, JOINING))

    def _lose(self, agent: Agent, why: str) -> None:
        self.publish(AgentWent(agent.name, why))
        agent.online, agent.state = False, "gone"
        for entry in self.reception.of(agent.name):
            entry.lost, entry.lost_at = True, self.clock()
        self.reception.stir()
        self.publish(FleetChanged())

    def _expel(self, barred: frozenset[str]) -> None:
        """Hears and asks agents no more whose certificates were revoked, and folds nothing of theirs; one that enrolled anew may come back."""
        self._expelled = barred
        for agent in self.agents.values():
            if agent.name not in barred:
                agent.refused = "" if agent.refused == REVOKED else agent.refused
            elif agent.refused != REVOKED:
                agent.refused, agent.profile = REVOKED, None
                for entry in self.reception.of(agent.name):
                    if entry.outcome:
                        continue  # what was folded stays in the sum
                    if entry.update is not None:
                        entry.update.unlink(missing_ok=True)
                    entry.update, entry.outcome = None, f"refused: {REVOKED}"
                self._lose(agent, f"is shut out: {REVOKED}")

    def _command(self, agent: str, message: messages.Message) -> None:
        self.link.publish(topics.command(self.run.run, agent), envelope.encode(message))
