"""Simulate the process of one agent in a schedule, over all its restarts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.fault_schedules import lying_agent
from benchmarks.fault_schedules.virtual_clock import Killed, Process
from benchmarks.fault_schedules.virtual_links import Network, VirtualLink
from benchmarks.fault_schedules.virtual_training import DATA, PYTORCH, VirtualRunner, survey_once
from federated.device.agent_event_loop import AgentEventLoop, Equipment
from federated.device.agent_run_files import Spool
from federated.device.agent_state import list_sending
from federated.errors import EspalierError
from federated.task import Profile, Timing
from federated.wire import envelope, messages, topics

__all__ = ["RESTART", "RUN", "Device"]

RUN = "schedule"  # name of the run
RESTART = 15.0  # seconds until an ended process restarts, as under systemd
TICK = 3.0  # seconds between an agent's turns
SILENT = 90.0  # seconds until an agent offers an unanswered update again: 60, and some turns
SLOW = 20.0  # seconds between the chunks of a dripping agent


class Device:
    """Process of one agent: starts its AgentEventLoop, which does all the work, gives it turns, and
    restarts it.

    pace: approximate seconds of a task
    character: see `VirtualRunner`; also `drip`, which sends updates a chunk at a time, and
        `namesake`, which has the name of another agent and leaves for good when told to
    fail: called with a misbehaviour of the agent
    over: why its part is over; empty while it is not
    """

    def __init__(
        self,
        network: Network,
        folder: Path,
        name: str,
        pace: float,
        character: str = "",
        fail: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.network, self.world, self.fail = network, network.world, fail
        self.folder, self.name, self.pace, self.character = folder, name, pace, character
        self.process = Process(name)
        self.over = ""
        self._link: VirtualLink | None = None
        self._spool: Spool | None = None
        self._participant: AgentEventLoop | None = None
        self._starts = 0
        self._offered = set[str]()
        self._said = 0.0  # time of its last message about an update, or without one to send
        self._woken = False

    @property
    def session(self) -> str:
        """Name of the present session."""
        return f"{self.character}-{self.name}-{self._starts}"

    def begin(self) -> None:
        """Start the process."""
        self._starts += 1
        will = (
            topics.status(RUN, self.name),
            envelope.encode(messages.Status(self.name, self.session, False)),
        )
        kind = lying_agent.LyingLink if self.character == "liar" else VirtualLink
        self._link = kind(self.network, self.process, will, self.wake, self._note)
        self._link.drip = SLOW if self.character == "drip" else 0.0
        self._guard(partial(self._link.subscribe, topics.run(RUN)))
        self.wake()

    def wake(self) -> None:
        """Give the process a turn after the present event."""
        if not self._woken:
            self._woken = True
            self.world.after(0.0, self._turn)

    def tick(self) -> None:
        """Give the process a turn regularly, until its part is over."""
        if not self.over:
            self._check_offers()
            self.wake()
            self.world.after(TICK, self.tick)

    def _check_offers(self) -> None:
        """Fail if the agent does not offer an unanswered update again."""
        agent, link, now = self._participant, self._link, self.world.now
        silenced = link is None or link.cut_off or now < self.process.paused
        if agent is None or silenced or not list_sending(agent.state):
            self._said = now
        elif now - self._said > SILENT and not self.character:
            self.fail(f"silent: {self.name} did not offer its update again for {SILENT:.0f} s")

    def close(self) -> None:
        """End the process, and release its folder."""
        if self._spool is not None:  # the system releases a dead process's locks
            self._spool.close()
        self._spool = self._participant = None
        if self._link is not None:
            with self.world.turn_of(None):
                self._link.kill()
            self._link = None

    def _turn(self) -> None:
        self._woken = False
        if self._link is None or self.over:
            return
        if self.world.now < self.process.paused:
            self.world.after(self.process.paused - self.world.now, self.wake)
            return
        self._guard(self._take_part)

    def _guard(self, act: Callable[[], None]) -> None:
        """Call something as this process. If the process dies or fails, restart it later."""
        try:
            with self.world.turn_of(self.process):
                act()
        except Killed:
            self.close()
            self.process.end_death()
        except EspalierError:
            self.close()
            self.world.after(RESTART, self.begin)

    def _take_part(self) -> None:
        assert self._link is not None
        if self._participant is None and (run := self._find(self._link)) is not None:
            self._participant = self._join(self._link, run)
        participant = self._participant
        if participant is None:
            return
        while participant.turn(0.0) and self._link.backlog:
            pass
        if not participant.state.over:
            return
        participant.leave()
        if participant.state.refused and self.character != "namesake":
            self.world.after(RESTART, self.begin)
        else:
            self.over = participant.state.over
        self.close()

    def _find(self, link: VirtualLink) -> messages.Run | None:
        """Return the run's card, if it arrived."""
        while (delivery := link.receive(0.0)) is not None:
            if delivery.topic != topics.run(RUN) or not delivery.payload:
                continue
            try:
                found = envelope.decode(delivery.payload)
            except EspalierError:  # damaged in transit
                continue
            if isinstance(found, messages.Run):
                return found
            if isinstance(found, messages.Goodbye):
                self.over = found.reason
        return None

    def _join(self, link: VirtualLink, run: messages.Run) -> AgentEventLoop:
        link.unsubscribe(topics.run(RUN))
        runner = VirtualRunner(self.world, self.pace, self.character, self.wake, self._offered)
        self._spool = Spool(self.folder, lasting=True)
        equipment = Equipment(
            self._measure, runner, self._spool, clock=partial(self.world.clock, self.process)
        )
        participant = self._participant = AgentEventLoop(
            link, run, self.name, self.session, equipment
        )
        participant.join()
        return participant

    def _note(self, topic: str, payload: bytes) -> None:
        """Record offered transfers, which must not be trained again, and their time."""
        if "/up/" in topic:
            self._said = self.world.now
        if topic == topics.say(RUN, self.name) and isinstance(
            message := envelope.decode(payload), messages.Offer
        ):
            self._offered.add(message.manifest.transfer)
            self._said = self.world.now

    def _measure(self, run: messages.Run) -> Profile:
        timings = tuple(Timing(submodel, run.batch, self.pace / 10) for submodel in run.calibration)
        profile = Profile(
            self.name,
            "h",
            "s",
            1.0,
            10**9,
            1e9,
            2**18,
            "virtual",
            DATA,
            timings,
            survey_once(run),
            codecs=("raw", "int8"),
            protocol=envelope.PROTOCOL,
            capabilities=tuple(sorted(PYTORCH.capabilities)),
        )
        return (
            lying_agent.falsify_profile(profile, self.world.random)
            if self.character == "liar"
            else profile
        )
