"""Drive an agent: turn messages, outcomes of tasks and time into events, pass them to `step`, and
carry out the actions.

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

from federated.device import agent_actions as do
from federated.device import agent_events as on
from federated.device.agent_run_files import Spool
from federated.device.agent_state import AgentState, OpenTask, find_active
from federated.device.agent_step import step
from federated.device.task_runner_interface import Outcome, TaskRunner
from federated.device.transfers import Downloads, Uploads
from federated.errors import Refused, WireError
from federated.http_transfers.http_client import HttpAccess
from federated.task import Profile, Task
from federated.wire import envelope, messages, topics
from federated.wire.link import LINK_DOWN, LINK_UP, Delivery, Link

__all__ = ["AgentEventLoop", "Equipment"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Equipment:
    """The equipment of an agent.

    measure: measures the device for a run; called when the agent is made, and when the run changes.
    runner: executes tasks.
    spool: stores weights and updates.
    pause: returns why the device accepts no task now; empty if it does. A task that has begun is
        finished.
    clock: seconds, monotone.
    condition: returns the present condition of the device.
    weights: files with weights and graphs by digest that agents of one process share and need not
        download; None: those of the spool.
    http: how the device reaches servers that the coordinator names.
    """

    measure: Callable[[messages.Run], Profile]
    runner: TaskRunner
    spool: Spool
    pause: Callable[[], str] = lambda: ""
    clock: Callable[[], float] = time.monotonic
    condition: Callable[[], messages.Condition] = messages.Condition
    weights: OrderedDict[str, Path] | None = None
    http: HttpAccess = HttpAccess()  # noqa: RUF009  # frozen


class AgentEventLoop:
    """One agent in one run: call `join`, then `turn` until it returns False, then `leave`.

    state: of the agent; only `handle` changes it.
    """

    def __init__(
        self, link: Link, run: messages.Run, name: str, session: str, equipment: Equipment
    ) -> None:
        self.link, self.equipment = link, equipment
        spool, http = equipment.spool, equipment.http
        self._downloads = Downloads(link, spool, equipment.weights, http)
        self._uploads = Uploads(link, run.run, name, spool, http)
        self._events: deque[on.AgentEvent] = deque()
        self._announcements = (topics.profile(run.run, name), topics.status(run.run, name))
        self._epoch = equipment.spool.load_epoch()  # the highest of the run's coordinators
        tasks = tuple(OpenTask(task, stage="sending") for task in self._uploads.resume(run))
        now, paused, profile = equipment.clock(), equipment.pause(), equipment.measure(run)
        self.state = AgentState(run, name, session, profile, paused=paused, looked=now, tasks=tasks)

    # ---- life ------------------------------------------------------------------------------------

    def join(self) -> None:
        """Subscribe to the agent's topics, and publish its profile and its status, both
        retained.
        """
        for pattern in topics.agent_patterns(self.state.card.run, self.state.name):
            self.link.subscribe(pattern)
        self.handle(on.Started(self.equipment.clock()))

    def turn(self, timeout: float) -> bool:
        """Handle one delivery, if one arrives within `timeout` seconds, and everything that is due.
        Return True if the agent's part in the run continues.
        """
        delivery = self.link.receive(timeout)
        if delivery is not None:
            try:
                self._take(delivery, self.equipment.clock())
            except WireError as error:
                log.warning("refused a message on %s: %s", delivery.topic, str(error))
        self._advance(self.equipment.clock())
        return not self.state.over

    def leave(self) -> None:
        """Stop working and sign off. If the link is down, the last will signs off. After the end of
        a run, also remove its data from the broker and the spool.
        """
        self._uploads.stop()
        self.handle(on.Stopped(self.equipment.clock()))

    def update_profile(self, profile: Profile) -> None:
        """Publish a new profile, after the device measured itself again."""
        self.handle(on.ProfileMeasured(self.equipment.clock(), profile))

    # ---- events ----------------------------------------------------------------------------------

    def handle(self, event: on.AgentEvent) -> None:
        """Step the agent with an event, carry out its actions, and repeat with the events that they
        cause.
        """
        self._events.append(event)
        if len(self._events) > 1:
            return  # called from an action of the first one, whose loop handles this event
        try:
            while self._events:
                self.state, actions = step(self.state, self._events[0])
                for action in actions:
                    self._do(action)
                self._events.popleft()
        except BaseException:
            self._events.clear()
            raise

    def _take(self, delivery: Delivery, now: float) -> None:
        """Handle a delivery. Raises WireError for an invalid message."""
        if delivery.topic in (LINK_DOWN, LINK_UP):
            online = delivery.topic == LINK_UP
            self._downloads.follow_link(now, online=online)
            self.handle(on.LinkBack(now) if online else on.LinkLost(now))
        if not delivery.payload or delivery.topic.startswith("$"):
            return
        message, epoch = envelope.decode_with_epoch(delivery.payload)
        if 0 < epoch < self._epoch:
            raise Refused(
                f"its coordinator has the epoch {epoch}, and a later one, with the epoch "
                f"{self._epoch}, leads the run"
            )
        if epoch > self._epoch:
            self._epoch = epoch
            self.equipment.spool.note_epoch(epoch)
        match message:
            case messages.Manifest() | messages.Chunk() as message:
                self._download(delivery.topic, message, now)
            case messages.Grant() as grant:
                self._uploads.take_grant(grant, now)
            case messages.Status() as status if status.agent == self.state.name:
                self.handle(on.StatusHeard(now, status, delivery.retained))
            case messages.Refusal(reason, about) if about != messages.JOINING:
                log.warning("the coordinator refused a message (%s): %s", about, reason)
                if about in self._announcements:
                    self.handle(on.AnnouncementLost(now))
            case message:
                if (event := self._to_event(message, now)) is not None:
                    self.handle(event)

    def _to_event(self, message: messages.Message, now: float) -> on.AgentEvent | None:
        """Return the event of a message from the coordinator. Raises Refused for a task of another
        agent.
        """
        match message:
            case Task() as task:
                run, name = self.state.card.run, self.state.name
                if (task.run, task.agent) != (run, name):
                    raise Refused(
                        f"expected a task for {name} in {run}, found one for {task.agent} in "
                        f"{task.run}"
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

    def _download(
        self, topic: str, message: messages.Manifest | messages.Chunk, now: float
    ) -> None:
        """Handle a message with weights. Raises Refused."""
        self._continue_download(lambda: self._downloads.take(topic, message, now), now)

    def _continue_download(self, work: Callable[[], bool], now: float) -> None:
        """Let the downloads work, which return whether they are complete. Raises Refused."""
        digest = self._downloads.digest
        try:
            complete = work()
        except OSError as error:
            where = f"{self.equipment.spool.folder}: {error.strerror or error}"
            self.handle(on.WeightsFailed(now, digest, where, self._downloads.removable))
        else:
            if complete:
                self.handle(on.WeightsCame(now, digest))

    def _advance(self, now: float) -> None:
        """Check the task runner and the transfers, then handle the passing of time."""
        one = find_active(self.state)
        if (
            one is not None
            and one.stage == "training"
            and (outcome := self.equipment.runner.poll()) is not None
        ):
            self.handle(self._store_outcome(outcome, now))
        if self.state.online:
            try:
                self._continue_download(lambda: self._downloads.tick(now), now)
            except WireError as error:
                log.warning("cannot download weights: %s", error)
            for task in self._uploads.check_stalls(now):
                self.handle(on.UploadStalled(now, task))
            self._uploads.send()
        steps, condition = self.equipment.runner.progress, self.equipment.condition()
        self.handle(on.Ticked(now, self._downloads.received, steps, condition))

    def _store_outcome(self, outcome: Outcome, now: float) -> on.TrainingEnded:
        failure: str | None = outcome.reason
        if outcome.path is not None:
            try:
                self._uploads.add(outcome.task, outcome.path, self.state.card)
                failure = None
            except (OSError, ValueError) as error:
                failure = f"cannot read its update: {error}"
        return on.TrainingEnded(now, outcome.task, outcome.loss, failure, outcome.full)

    # ---- actions ---------------------------------------------------------------------------------

    def _do(self, action: do.AgentAction) -> None:
        now = self.equipment.clock()
        match action:
            case do.Tell(message):
                self._publish(message)
            case do.AskStatus():
                self.link.subscribe(topics.status(self.state.card.run, self.state.name))
            case do.Fetch(task):
                if self._downloads.fetch(task, now):
                    self.handle(on.WeightsCame(now, task.digest))
            case do.StopFetching():
                self._downloads.stop()
            case do.FreeSpace():
                self._downloads.remove_all()
            case do.Train(task):
                self.equipment.runner.begin(
                    task,
                    self._downloads.place(task),
                    self.equipment.spool.update_path(task.transfer),
                )
            case do.StopTraining():
                self.equipment.runner.cancel()
            case do.Offer(task, restart):
                self._uploads.offer(task, restart=restart)
            case do.Forget(task):
                self._uploads.remove(task)
            case do.Trim(digest):
                self._downloads.trim(digest)
                if self.equipment.spool.excess():
                    self.handle(on.SpoolOverfull(now))
            case do.Measure():
                self.handle(on.ProfileMeasured(now, self.equipment.measure(self.state.card)))
            case do.Look():
                self.handle(on.PauseSeen(now, self.equipment.pause()))
            case do.Erase():
                self._erase()
            case do.Log(text, warn, about, event):
                log.log(
                    logging.WARNING if warn else logging.INFO,
                    "%s",
                    text,
                    extra=log_fields(about, event) if about is not None else None,
                )

    def _publish(
        self, message: messages.Failure | messages.Heartbeat | messages.Status | Profile
    ) -> None:
        run, name, payload = self.state.card.run, self.state.name, envelope.encode(message)
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
        for topic in (topics.profile, topics.status):
            self.link.publish(topic(self.state.card.run, self.state.name), b"", retain=True)


def log_fields(task: Task, event: str) -> dict[str, object]:
    """Return the fields of a log record about a task."""
    return {
        "event": event,
        "run": task.run,
        "round": task.round,
        "agent": task.agent,
        "work": task.work,
        "submodel": task.submodel.name,
    }
