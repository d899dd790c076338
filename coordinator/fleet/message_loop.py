"""Run the message loop of the coordinator: wait for messages of agents, and turn them into events
of the round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from immutables import Map

from coordinator.access.broker_setup import EXCLUDED, REVOKED, SUSPENDED, BrokerAccess
from coordinator.assign.eligibility import Eligibility
from coordinator.fleet.coordinator_takeover import Leadership
from coordinator.fleet.flood_guard import FloodGuard
from coordinator.fleet.message_sender import Endpoint
from coordinator.fleet.published_weights import WeightSlots
from coordinator.fleet.round_event_loop import RoundEventLoop
from coordinator.fleet.run_clock import RunClock
from coordinator.fleet.update_inbox import Inbox
from coordinator.fleet.update_reception import Intake, UpdateReception, find_key
from coordinator.observe.events import FleetChanged, LinkChanged, LoopTurned, Publish, Rejected
from coordinator.round import round_events as on
from coordinator.round.collector_interface import Collector
from coordinator.round.next_round_actions import RELIEF_PAUSE
from coordinator.round.round_state import (
    Agent,
    Round,
    is_expected,
    list_carried_tasks,
    list_phase_tasks,
)
from coordinator.round.task_state import TaskState
from coordinator.store.control_requests import Control
from coordinator.trust.message_checks import check_profile
from coordinator.trust.message_topic_check import check_place
from coordinator.update_workers.worker_pool import WorkerPool
from federated.errors import Malformed, ProtocolMismatch, Refused, WireError
from federated.safe_text import make_safe
from federated.task import Profile, Work
from federated.wire import envelope, messages, topics
from federated.wire.link import LINK_DOWN, LINK_UP, Delivery, Link
from federated.wire.messages import JOINING

__all__ = ["MessageLoop"]

POLL = 0.5  # seconds between ticks
REPORTS = 0.01  # seconds between looks for reports of workers that receive updates
# seconds with heartbeats of an agent but without its profile or status until they are requested
ANNOUNCEMENT_PATIENCE = 10.0
# seconds for an agent to reconnect before it counts as gone, if its last will is a retained
# message: a broker that stops publishes the wills of all clients, and keeps them for its next
# start. Longer than the longest pause between two attempts of an agent (10 s).
RECONNECTION = 12.0


class MessageLoop:
    """The coordinator's half of the protocol, for one run."""

    def __init__(
        self,
        link: Link,
        run: messages.Run,
        spool: Path,
        intake: Intake = Intake(),  # noqa: B008  # frozen
        *,
        publish: Publish = lambda event: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.link, self.attempt, self.publish, self.clock = link, intake.attempt, publish, clock
        slots = WeightSlots(link, run.run, spool, intake.chunk, intake.urls)
        self.endpoint = Endpoint(link, run, slots, intake.epoch, chunks=intake.workers is None)
        self.inbox = Inbox(spool, intake.slots, sync=intake.rules.durable, urls=intake.urls)
        self.inbox.workers = intake.workers
        self.driver = RoundEventLoop(
            self.endpoint, self.inbox, intake.rules, publish, clock, intake.journal
        )
        self._reception = UpdateReception(self.inbox, self.driver, clock)
        self._control: Control | None = None
        self._broker_access = BrokerAccess("", link=link)
        self._eligibility: Eligibility | None = None
        self._barred = dict.fromkeys((REVOKED, SUSPENDED, EXCLUDED), frozenset[str]())
        self._ticked = self._filled = -math.inf
        self._guard, self._connected = FloodGuard(), True
        self._store_lost = ""
        # the clock of everything but the round: it also runs while a round waits
        self._uptime = clock.measure_all if isinstance(clock, RunClock) else clock
        self._leadership = Leadership(self.endpoint, self._uptime)
        # agent -> its session, and when it counts as gone: see RECONNECTION
        self._departed = dict[str, tuple[str, float]]()
        self._requested = dict[str, float]()  # when an agent's profile was requested, or missed
        # deliveries that arrived before a tick was due, and are handled before it
        self._ahead: int | None = None

    @property
    def run(self) -> messages.Run:
        """The run's card."""
        return self.endpoint.card

    def count_bytes(self) -> tuple[int, int]:
        """Return the bytes received and sent so far. What many agents download counts once."""
        received = self.link.received_bytes + self.inbox.uploaded_bytes
        return received, self.link.sent_bytes + self.endpoint.slots.served_bytes

    @property
    def round(self) -> Round:
        return self.driver.round

    @property
    def agents(self) -> Map[str, Agent]:
        return self.round.agents

    @property
    def tasks(self) -> list[TaskState]:
        """The tasks of the current phase, or of the last one."""
        return list_phase_tasks(self.round)

    @property
    def late(self) -> list[TaskState]:
        """Tasks of earlier rounds that may still be answered."""
        return list_carried_tasks(self.round)

    def list_ready(self) -> list[Agent]:
        """Return the agents that can be asked, by name."""
        return sorted(
            (agent for agent in self.agents.values() if agent.ready), key=lambda agent: agent.name
        )

    def list_candidates(self, work: Work, round: int) -> list[Agent]:
        """Return the ready agents that do not rest in this round, or all ready ones if all rest.
        Agents that are still busy with a probe are not among them.
        """
        probed = {state.task.agent for state in self.late if state.outlasting}
        ready = [agent for agent in self.list_ready() if agent.name not in probed]
        return [agent for agent in ready if not agent.explain_rest(work, round)] or ready

    def list_free(self) -> list[Agent]:
        """Return the ready agents that are not working on a task of an earlier round."""
        busy = {state.task.agent for state in self.late if state.open}
        return [agent for agent in self.list_ready() if agent.name not in busy]

    # ---- participants ----------------------------------------------------------------------------

    def reannounce(self, card: messages.Run) -> None:
        """Publish a card that holds more than the last one; agents measure themselves again."""
        self.driver.handle(on.CardChanged(self.clock()))
        self._leadership.publish(card)

    def follow(
        self, control: Control | None = None, broker_access: BrokerAccess | None = None
    ) -> None:
        """Check at every turn what people request and which agents are revoked."""
        self._control, self._broker_access = control, broker_access or self._broker_access
        self._broker_access.link = self.link

    def admit(self, eligibility: Eligibility) -> None:
        """Let only eligible agents take part from now on, and check those that are here."""
        self._eligibility = eligibility
        self.judge()

    def judge(self) -> None:
        """Check every known agent against the current rules."""
        for agent in list(self.agents.values()):
            if agent.profile is not None:
                self.driver.handle(self._check_eligibility(agent.name, agent.profile))

    def dismiss(self, reason: str, patience: float = 0.0) -> None:
        """End the run for all agents. patience: seconds for those that are online to sign off."""
        self.endpoint.dismiss(
            reason,
            list(self.agents),
            [agent.name for agent in self.agents.values() if agent.online],
            patience,
        )

    # ---- turns -----------------------------------------------------------------------------------

    def run_phase(self, began: on.PhaseBegan, collector: Collector) -> None:
        """Run a phase from its beginning to its end."""
        self.driver.begin(began, collector)
        self.finish_phase()

    def finish_phase(self) -> None:
        """Run the current phase to its end."""
        self._leadership.leading = True
        while not (phase := self.driver.phase).closed:
            self.turn(max(0.02, min(0.2, phase.began + phase.limit - self.clock())))
        self.driver.end()
        self.publish(FleetChanged())

    def turn(self, timeout: float) -> None:
        """Handle one delivery if one arrives in time, and tick when a tick is due."""
        if self._control is not None:
            self._control.look()
        self._bar_agents()
        self._follow_store()
        if self._connected:
            self.endpoint.slots.send(self._uptime())
        if (workers := self.inbox.workers) is not None:
            if self._take_reports(workers):
                timeout = 0.0  # the phase may have ended, or the next agent's turn may have come
            elif workers.busy:
                timeout = min(timeout, REPORTS)
        delivery = self.link.receive(timeout)
        if delivery is not None:
            try:
                self._handle(delivery)
            except WireError as error:
                self._reject(delivery.topic, error)
        now, uptime = self.clock(), self._uptime()
        if self._connected:
            self._leadership.check(self.round.heartbeat, repeat=self._broker_access.by_name_only)
        if ticking := self._may_tick(uptime, delivery):
            self._ticked = uptime
            self.publish(LoopTurned())
        if ticking and self._connected:
            for topic, refused in self._reception.follow_uploads(self.run.run):
                self._reject(topic, refused)
            self._end_departures(now)
            self.driver.handle(on.Ticked(now, *self.inbox.compare_queue(self.round.waiting)))
            self.driver.compact()
        for name, grant in self.inbox.grants(now, quiet=ticking):
            self.endpoint.tell(name, grant)
        if self.inbox.full and uptime - self._filled >= RELIEF_PAUSE:
            self._filled = uptime
            self.driver.handle(on.SpoolFilled(now))

    def _take_reports(self, workers: WorkerPool) -> bool:
        """Handle what the workers have reported. Return whether there was any report."""
        handled = list(self._reception.take_reports(workers, self.run.run))
        for topic, error in handled:
            if error is not None:
                self._reject(topic, error)
            self.publish(FleetChanged(topics.find_sender(topic)))
        for agent in workers.take_flooders():
            self._broker_access.suspend(agent)
        return bool(handled)

    def _bar_agents(self) -> None:
        """Shut out agents that are revoked, suspended or excluded; no round waits for them."""
        for reason, agents in self._broker_access.list_shut_out().items():
            if agents != self._barred[reason]:
                self.driver.handle(on.AgentsBarred(self.clock(), agents, reason))
                if not self.driver.stalled:
                    for name in agents - self._barred[reason] if reason == EXCLUDED else ():
                        self._refuse(name)
                    self._barred[reason] = agents

    def _follow_store(self) -> None:
        """Stop the clock while a store cannot be reached, which must not make agents late."""
        lost = urls.lost if (urls := self.endpoint.slots.urls) is not None else ""
        if lost == self._store_lost or not self._connected:
            return
        if not lost:
            self.driver.handle(on.TransfersRestored(self.clock()))
            if self.driver.stalled:
                return
        if isinstance(self.clock, RunClock):
            (self.clock.stop if lost else self.clock.start)("store")
        self._store_lost = lost
        self.publish(LinkChanged(lost, "store"))

    def _end_departures(self, now: float) -> None:
        """Report the agents that did not reconnect as gone."""
        for name, (session, due) in list(self._departed.items()):
            if now >= due:
                del self._departed[name]
                self.driver.handle(on.AgentLeft(now, name, session, "went away"))

    def _is_barred(self, name: str) -> bool:
        shut = self._barred
        return name in shut[REVOKED] or name in shut[SUSPENDED] or self._broker_access.lacks(name)

    def _may_tick(self, uptime: float, delivery: Delivery | None) -> bool:
        """Return True if a tick is due and everything that had arrived by then is handled, so that
        no agent is late because the coordinator was computing, and no flood delays ticks for long.
        """
        if uptime - self._ticked < POLL and not self._is_over(self.clock()):
            return False
        if self._ahead is None:
            self._ahead = self.link.backlog
        elif delivery is not None:
            self._ahead -= 1
        if delivery is not None and self._ahead > 0:
            return False
        self._ahead = None
        return True

    def _is_over(self, now: float) -> bool:
        """Return True if the phase is past its deadline."""
        phase = self.round.phase
        return phase is not None and not phase.closed and now >= phase.began + phase.limit

    # ---- messages --------------------------------------------------------------------------------

    def _handle(self, delivery: Delivery) -> None:
        if delivery.topic in (LINK_DOWN, LINK_UP):
            self._change_link(delivery)
            return
        where = topics.parse(delivery.topic)
        if where is not None and where.kind == "run":
            self._leadership.take_card(delivery)
            return
        if where is None or not where.agent or not delivery.payload or self._is_barred(where.agent):
            return
        name, size, now = where.agent, len(delivery.payload), self.clock()
        if not self._is_admitted(where, name, size, uptime := self._uptime()):
            self._count_dropped(name, size)
            return
        if name in self._barred[EXCLUDED]:
            self._refuse(name)
            return
        message = envelope.decode(delivery.payload)
        check_place(message, where)
        match message:
            case messages.Echo():  # a device tests its connection (edge-agent doctor)
                self.endpoint.tell(name, replace(message, time=time.time()))
                return
            case messages.Status(_, session, True, paused):
                self._departed.pop(name, None)
                self.driver.handle(on.AgentConnected(now, name, session, paused))
            case messages.Status(_, session) if delivery.retained:
                self._departed[name] = session, now + RECONNECTION
            case messages.Status(_, session):
                self.driver.handle(on.AgentLeft(now, name, session, "went away"))
            case Profile() as profile:
                check_profile(profile, self.run)
                self.driver.handle(self._check_eligibility(name, profile))
            case messages.Heartbeat() as beat:
                self._departed.pop(name, None)
                self._take_heartbeat(name, beat, now)
            case messages.Offer() as offer:
                key = find_key(name, offer)
                if is_expected(self.round, key, offer.attempt) and not self.inbox.knows(key):
                    self._guard.refund(name, size, uptime)
                if not self._reception.finish_upload(key):
                    self.driver.handle(on.UpdateOffered(now, name, offer))
                    self._reception.finish_upload(key)  # a simulated device offers a file
            case messages.Chunk() as chunk:
                self._reception.store(name, chunk)
            case messages.Failure() as failure if failure.run == self.run.run:
                key = find_key(name, failure)
                if is_expected(self.round, key, failure.attempt):
                    self._guard.refund(name, size, uptime)
                self.driver.handle(
                    on.TaskFailed(now, key, failure.attempt, failure.reason, failure.paused)
                )
            case _:
                raise Refused(f"agents do not send {type(message).__name__}")
        self.publish(FleetChanged(name))

    def _refuse(self, name: str) -> None:
        if self._guard.admit_refusal(name, self._uptime()):
            self.endpoint.refuse_run(name)

    def _change_link(self, change: Delivery) -> None:
        """Stop the clock during an outage of the broker, which must not make agents late."""
        up = change.topic == LINK_UP
        if up != self._connected:  # a link reports each failed attempt to reconnect
            reason = make_safe(change.payload.decode(errors="replace")) or "unknown reason"
            self._connected = up
            self.publish(LinkChanged("" if up else reason))
        if isinstance(self.clock, RunClock):
            (self.clock.start if up else self.clock.stop)("link")
        if up:
            self._leadership.restore_link()

    def _is_admitted(self, where: topics.Place, name: str, size: int, now: float) -> bool:
        """Return whether to decode a message of an agent."""
        match where.kind:
            case "chunk":
                new = self.inbox.lacks(name, where.transfer, where.index)
                if new is None:
                    return False
                # invalid ones among the new chunks must not go on
                return self._guard.admits(name, now) if new else self._guard.admit_beat(name, now)
            case "hb":
                return self._guard.admit_beat(name, now)
            case _:
                return self._charge(name, size, now)

    def _charge(self, name: str, size: int, now: float) -> bool:
        """Return whether an agent may send another message, and take the tokens for it. Tell when
        further ones will be dropped.
        """
        if not self._guard.admits(name, now):
            return False
        self._guard.charge(name, size, now)
        if not self._guard.admits(name, now):
            reason = f"too many messages: dropping further ones of '{name}'"
            self.publish(Rejected("flood", name, reason, name))
        return True

    def _count_dropped(self, name: str, size: int) -> None:
        """Count a dropped message, and suspend an agent whose messages are too many."""
        if not self._is_barred(name) and self._guard.count_dropped(name, size, self._uptime()):
            self._broker_access.suspend(name)
            reason = f"dropped thousands of messages of '{name}': stop it, or revoke it"
            self.publish(Rejected("flood", name, reason, name))

    def _take_heartbeat(self, name: str, beat: messages.Heartbeat, now: float) -> None:
        self._request_announcement(name, beat.session, self._uptime())
        shown = beat.state, beat.loss, beat.step, beat.round, beat.work, beat.condition
        self.driver.handle(on.AgentBeat(now, name, beat.session, *shown))

    def _request_announcement(self, name: str, session: str, now: float) -> None:
        """Ask an agent that is alive for the status or the profile that did not arrive."""
        agent = self.agents.get(name)
        if agent is not None and agent.session == session and agent.profile is not None:
            self._requested.pop(name, None)
            return
        # the first heartbeat may be faster than a large profile
        first = self._requested.setdefault(name, now)
        if now - first >= ANNOUNCEMENT_PATIENCE:
            self._requested[name] = now
            reason = "it has not arrived: send it again"
            self.endpoint.tell(name, messages.Refusal(reason, topics.profile(self.run.run, name)))

    def _check_eligibility(self, name: str, profile: Profile) -> on.ProfileCame:
        rules = self._eligibility
        refusal = rules.explain_refusal(profile) if rules is not None else ""
        exclusion = rules.explain_exclusion(profile) if rules is not None else ""
        return on.ProfileCame(self.clock(), name, profile, refusal, exclusion)

    def _reject(self, topic: str, error: WireError) -> None:
        where = topics.parse(topic)
        name = where.agent if where is not None else None
        kind = {ProtocolMismatch: "protocol", Malformed: "malformed"}.get(type(error), "message")
        self.publish(Rejected(kind, topic, str(error), name, topic=topic))
        if where is not None and name:
            if where.kind in ("chunk", "hb"):  # the others paid when they came
                self._charge(name, 0, self._uptime())
            if self._guard.admit_refusal(name, self._uptime()):
                # an agent of an unknown version would repeat its profile in vain
                joins = kind == "protocol" and where.kind in ("profile", "status")
                self.endpoint.tell(name, messages.Refusal(str(error), JOINING if joins else topic))
