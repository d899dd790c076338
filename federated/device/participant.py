"""The driver of an agent: turns what comes, what the task runner does and time into events, hands
them to `step`, and does the actions.

It is the only part of an agent that waits. Tasks survive a lost link, a broker restart and a
coordinator restart. With a lasting spool, finished updates and downloads also survive the agent's
own process, and the next process resumes them.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from federated.device import actions as do
from federated.device import events as on
from federated.device.downloads import CACHED, Downloads
from federated.device.spool import Spool
from federated.device.state import AgentState, OpenTask, active, activity
from federated.device.step import step
from federated.device.task_runner import Outcome, TaskRunner
from federated.device.uploads import Uploads
from federated.errors import Refused, WireError
from federated.task import Profile, Task
from federated.wire import envelope, messages, topics
from federated.wire.delivery_queue import LINK_DOWN, LINK_UP, Delivery
from federated.wire.link import Link

__all__ = ["Equipment", "Participant", "willing"]

log = logging.getLogger(__name__)


def willing() -> str:
    """The device may always work."""
    return ""


@dataclass(frozen=True)
class Equipment:
    """What an agent works with.

    measure: what this device can do for a run; called when the agent is made, and whenever the run
    changes.
    runner: does the tasks. spool: keeps weights and updates.
    pause: why the device is to take no task now; empty where it may. A task that has begun is
    finished.
    clock: seconds, never set back.
    weights: downloads by digest, the latest last, which agents of one process may share; None:
    those of the spool. cached: how many are kept.
    """

    measure: Callable[[messages.Run], Profile]
    runner: TaskRunner
    spool: Spool
    pause: Callable[[], str] = willing
    clock: Callable[[], float] = time.monotonic
    weights: OrderedDict[str, Path] | None = None
    cached: int = CACHED


class Participant:
    """One agent in one run: `join`, then `turn` until `over`, then `leave`. value: where it stands;
    only `take` changes it.
    """

    def __init__(
        self, link: Link, run: messages.Run, name: str, session: str, equipment: Equipment
    ) -> None:
        self.link, self.equipment = link, equipment
        self._downloads = Downloads(link, equipment.spool, equipment.weights, equipment.cached)
        self._uploads = Uploads(link, run.run, name, equipment.spool)
        self._events: deque[on.AgentEvent] = deque()
        left = tuple(OpenTask(task, stage="sending") for task in self._uploads.resume(run))
        now, paused, profile = equipment.clock(), equipment.pause(), equipment.measure(run)
        self.value = AgentState(run, name, session, profile, paused=paused, looked=now, tasks=left)

    # ---- life ------------------------------------------------------------------------------------

    def join(self) -> None:
        """Listens, and says who is here: the measured profile, then the birth, both retained."""
        for pattern in topics.agent_patterns(self.run.run, self.name):
            self.link.subscribe(pattern)
        self.take(on.Started(self.equipment.clock()))

    def turn(self, timeout: float) -> bool:
        """Handles one delivery, if one comes within `timeout` seconds, and all that is due; False
        once `over`.
        """
        delivery = self.link.receive(timeout)
        if delivery is not None:
            try:
                self._hear(delivery, self.equipment.clock())
            except WireError as error:
                log.warning("refused a message on %s: %s", delivery.topic, str(error))
        self._advance(self.equipment.clock())
        return not self.over

    def leave(self) -> None:
        """Stops the work and signs off; if that cannot be sent, the will says it. Nothing of a run
        that is over stays in the broker or the spool.
        """
        self.take(on.Stopped(self.equipment.clock()))

    def remeasured(self, profile: Profile) -> None:
        """The device measured itself again: from now on this is what it says of itself."""
        self.take(on.ProfileMeasured(self.equipment.clock(), profile))

    # ---- what others look at ---------------------------------------------------------------------

    @property
    def run(self) -> messages.Run:
        return self.value.card

    @property
    def name(self) -> str:
        return self.value.name

    @property
    def profile(self) -> Profile:
        return self.value.profile

    @property
    def state(self) -> str:
        """What this agent does, in one word."""
        return activity(self.value)

    @property
    def paused(self) -> str:
        """Why it takes no task at present; empty where it does."""
        return self.value.paused

    @property
    def finished(self) -> int:
        """Trainings whose updates the coordinator accepted."""
        return self.value.finished

    @property
    def over(self) -> str:
        """Why its part is over; empty while it is not."""
        return self.value.over

    @property
    def refused(self) -> bool:
        """Whether it was turned away."""
        return self.value.refused

    # ---- events ----------------------------------------------------------------------------------

    def take(self, event: on.AgentEvent) -> None:
        """Steps the agent with an event, does the actions, and repeats with the events that they
        cause.
        """
        self._events.append(event)
        if len(self._events) > 1:
            return  # one is being handled, of which this one is a consequence
        try:
            while self._events:
                self.value, actions = step(self.value, self._events[0])
                for action in actions:
                    self._do(action)
                self._events.popleft()
        except BaseException:
            self._events.clear()
            raise

    def _hear(self, delivery: Delivery, now: float) -> None:
        """Raises WireError for a message that cannot be."""
        if delivery.topic in (LINK_DOWN, LINK_UP):
            online = delivery.topic == LINK_UP
            self._downloads.reach(now, online=online)
            self.take(on.LinkBack(now) if online else on.LinkLost(now))
        if not delivery.payload or delivery.topic.startswith("$"):
            return
        match envelope.decode(delivery.payload):
            case messages.Manifest() | messages.Chunk() as piece:
                self._receive(delivery.topic, piece, now)
            case messages.Grant() as grant:
                self._uploads.granted(grant, now)
            case messages.Status() as status if status.agent == self.name:
                self.take(on.StatusHeard(now, status, delivery.retained))
            case messages.Refusal(reason, about) if about != messages.JOINING:
                log.warning("the coordinator refused a message (%s): %s", about, reason)
            case message:
                if (event := self._event(message, now)) is not None:
                    self.take(event)

    def _event(self, message: messages.Message, now: float) -> on.AgentEvent | None:
        """What a message of the coordinator says. Raises Refused for a task of another agent."""
        match message:
            case Task() as task:
                if (task.run, task.agent) != (self.run.run, self.name):
                    raise Refused(
                        f"a task for {task.agent} of {task.run} came to {self.name} of "
                        f"{self.run.run}"
                    )
                return on.TaskCame(now, task)
            case messages.Receipt(transfer, accepted, reason):
                return on.UpdateAnswered(now, transfer, accepted, reason)
            case messages.Abort(round, attempt, reason):
                return on.TasksAborted(now, round, attempt, reason)
            case messages.Run() as card:
                return on.CardCame(now, card)
            case messages.Goodbye(reason):
                return on.Dismissed(now, reason)
            case messages.Refusal(reason):
                return on.Dismissed(now, reason, refused=True)
        return None

    def _receive(self, topic: str, piece: messages.Manifest | messages.Chunk, now: float) -> None:
        """Takes a piece of weights. Raises Refused."""
        digest = self._downloads.coming
        try:
            whole = self._downloads.hear(topic, piece, now)
        except OSError as error:
            where = f"{self.equipment.spool.folder}: {error.strerror or error}"
            self.take(on.WeightsFailed(now, digest, where, self._downloads.spare))
        else:
            if whole:
                self.take(on.WeightsCame(now, digest))

    def _advance(self, now: float) -> None:
        """Looks at the task runner and at what is on its way, then says that time passed."""
        one = active(self.value)
        if (
            one is not None
            and one.stage == "training"
            and (outcome := self.equipment.runner.poll()) is not None
        ):
            self.take(self._ended(outcome, now))
        if self.value.online:
            self._downloads.tick(now)
            for task in self._uploads.stalled(now):
                self.take(on.UploadStalled(now, task))
            self._uploads.send(now)
        self.take(on.Ticked(now, self._downloads.got, self.equipment.runner.progress))

    def _ended(self, outcome: Outcome, now: float) -> on.TrainingEnded:
        failure: str | None = outcome.reason
        if outcome.path is not None:
            try:
                self._uploads.add(outcome.task, outcome.path, self.run)
                failure = None
            except (OSError, ValueError) as error:
                failure = f"its update cannot be read: {error}"
        return on.TrainingEnded(now, outcome.task, outcome.loss, failure, outcome.full)

    # ---- actions ---------------------------------------------------------------------------------

    def _do(self, action: do.AgentAction) -> None:
        now = self.equipment.clock()
        match action:
            case do.Tell(message):
                self._tell(message)
            case do.AskStatus():
                self.link.subscribe(topics.status(self.run.run, self.name))
            case do.Fetch(task):
                if self._downloads.fetch(task, now):
                    self.take(on.WeightsCame(now, task.digest))
            case do.StopFetching():
                self._downloads.stop()
            case do.FreeSpace():
                self._downloads.free()
            case do.Train(task):
                self.equipment.runner.begin(
                    task,
                    self._downloads.path(task.digest),
                    self.equipment.spool.update(task.transfer),
                )
            case do.StopTraining():
                self.equipment.runner.cancel()
            case do.Offer(task, anew):
                self._uploads.offer(task, anew=anew)
            case do.Forget(task):
                self._uploads.forget(task)
            case do.Trim(digest):
                self._downloads.bound(digest)
                if self.equipment.spool.excess():
                    self.take(on.SpoolOverfull(now))
            case do.Measure():
                self.take(on.ProfileMeasured(now, self.equipment.measure(self.run)))
            case do.Look():
                self.take(on.PauseSeen(now, self.equipment.pause()))
            case do.Erase():
                self._erase()
            case do.Log(text, warn, about, event):
                log.log(
                    logging.WARNING if warn else logging.INFO,
                    "%s",
                    text,
                    extra=fields(about, event) if about is not None else None,
                )

    def _tell(
        self, message: messages.Failure | messages.Heartbeat | messages.Status | Profile
    ) -> None:
        run, name, payload = self.run.run, self.name, envelope.encode(message)
        match message:
            case Profile():
                self.link.publish(topics.profile(run, name), payload, retain=True)
            case messages.Status():
                self.link.publish(topics.status(run, name), payload, retain=True)
            case messages.Heartbeat():
                self.link.publish(topics.heartbeat(run, name), payload, qos=0)
            case messages.Failure():
                self.link.publish(topics.say(run, name), payload)

    def _erase(self) -> None:
        if self.equipment.spool.lasting:
            self.equipment.spool.clear()
        for topic in (
            topics.profile(self.run.run, self.name),
            topics.status(self.run.run, self.name),
        ):
            self.link.publish(topic, b"", retain=True)


def fields(task: Task, event: str) -> dict[str, object]:
    """The fields of a line in the log that is about a task."""
    return {
        "event": event,
        "run": task.run,
        "round": task.round,
        "agent": task.agent,
        "work": task.work,
        "submodel": task.submodel.name,
    }
