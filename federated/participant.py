"""The agent's half of the protocol: hears tasks, fetches weights, hands work to a trainer, sends updates.

It knows the wire and nothing of PyTorch, processes or limits, so that a device, a simulation and a test all
speak through it. Everything is driven by `turn`, which handles at most one delivery and all timers.

Work outlives what fails around it: a link or a broker that is away, a coordinator that comes back and asks for the same again, and with
a lasting spool the agent's own process, whose finished updates and downloads the next one goes on with.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from federated.errors import Refused, WireError
from federated.namesake import Namesake
from federated.outbox import Outbox
from federated.setbacks import Setbacks, about
from federated.spool import Spool, transfer_of
from federated.task import HEARTBEAT, Profile, Task, beats
from federated.weights import CACHED, Weights
from federated.wire import envelope, messages, topics
from federated.wire.link import LINK_DOWN, LINK_UP, Delivery, Link
from federated.workload import Outcome, Trainer, Workload

__all__ = ["JOINING", "Participant", "same_work"]

log = logging.getLogger(__name__)

JOINING = "joining"  # what a Refusal is about when it turns the agent away
LOOK = 5.0  # seconds between looks at whether the device may work


def same_work(a: Task, b: Task) -> bool:
    """Whether two tasks ask for the same thing; the attempt does not count."""
    return (a.run, a.round, a.agent, a.work, a.submodel) == (b.run, b.round, b.agent, b.work, b.submodel)


class Participant:
    """One agent in one run: `join`, then `turn` until `over`, then `leave`."""

    def __init__(
        self,
        link: Link,
        run: messages.Run,
        name: str,
        measure: Callable[[messages.Run], Profile],
        trainer: Trainer,
        spool: Spool,
        *,
        session: str,
        clock: Callable[[], float] = time.monotonic,
        weights: OrderedDict[str, Path] | None = None,
        cached: int = CACHED,
        pause: Callable[[], str] = lambda: "",
    ) -> None:
        """measure: what this device can do for a run; called at join, and again when the run's network becomes known.

        pause: why the device is to take no task now, empty where it may; a task that it works on is finished.

        weights: downloads by digest, the latest last, which participants of one process may share; at most `cached` are kept.
        """
        self.link, self.run, self.spool = link, run, spool
        self.name, self.session, self.clock = name, session, clock
        self._measure = measure
        self._pause = pause
        self.paused = pause()
        self._asked = clock()  # when `pause` was
        self.profile = measure(run)
        self.over = ""  # why this agent is done, once it is
        self.refused = False  # whether it was turned away
        self.finished = 0  # updates that the coordinator accepted
        self._weights = Weights(link, spool, weights, cached)
        self._workload = Workload(trainer, self._weights, spool)
        self._outbox = Outbox(link, run.run, name, spool)
        self._outbox.resume(run)
        self._setbacks = Setbacks(link, run.run, name)
        self._namesake = Namesake(session)
        self._loss = float("nan")
        self._beaten: tuple[float, str] = (0.0, "")

    # ---- life ------------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Listens, and says who is here: the measured profile, then the birth, both retained."""
        for pattern in topics.agent_patterns(self.run.run, self.name):
            self.link.subscribe(pattern)
        self._introduce()
        self._outbox.offer()

    def leave(self) -> None:
        """Stops the work and signs off; where that cannot be sent, the will says it. Of a run that is over, nothing stays retained, nor in the spool.

        Updates that were not taken stay in a lasting spool.
        """
        self._workload.drop(lambda task: True, "leaving")
        if self.over and not self.refused:
            self._outbox.drop(lambda task: True)
            if self.spool.lasting:
                self.spool.clear()
            for topic in (topics.profile(self.run.run, self.name), topics.status(self.run.run, self.name)):
                self.link.publish(topic, b"", retain=True)
        else:
            self._say_status(online=False)

    def remeasured(self, profile: Profile) -> None:
        """The device measured itself again: from now on this is what it says of itself."""
        self.profile = profile
        self._introduce()

    def turn(self, timeout: float) -> bool:
        """Handles one delivery, if one comes within `timeout` seconds, and all that is due; False once `over`."""
        delivery = self.link.receive(timeout)
        if delivery is not None:
            try:
                self._hear(delivery)
            except WireError as error:
                log.warning("refused a message on %s: %s", delivery.topic, str(error))
        self._advance(self.clock())
        return not self.over

    @property
    def state(self) -> str:
        """What this agent is doing, in one word."""
        return self._workload.state or ("send" if len(self._outbox) else "idle")

    def _introduce(self) -> None:
        if not self._outbox.online:  # it is done with the link's return
            return
        self.link.publish(topics.profile(self.run.run, self.name), envelope.encode(self.profile), retain=True)
        self._say_status(online=True)

    def _say_status(self, *, online: bool) -> None:
        status = messages.Status(self.name, self.session, online, self.paused)
        self.link.publish(topics.status(self.run.run, self.name), envelope.encode(status), retain=True)

    # ---- hearing ---------------------------------------------------------------------------------------------------

    def _hear(self, delivery: Delivery) -> None:
        if delivery.topic in (LINK_DOWN, LINK_UP):
            self._reach(online=delivery.topic == LINK_UP)
        if not delivery.payload or delivery.topic.startswith("$"):
            return
        match envelope.decode(delivery.payload):
            case Task() as task:
                self._accept(task)
            case messages.Manifest() | messages.Chunk() as message:
                for outcome in self._workload.fetch(delivery.topic, message, self.clock()):
                    self._finish(outcome)
            case messages.Grant() as grant:
                self._outbox.granted(grant, self.clock())
            case messages.Receipt() as receipt:
                self._settle(receipt)
            case messages.Abort() as abort:
                self._drop(lambda task: task.round <= abort.round and task.attempt <= abort.attempt, abort.reason)
            case messages.Status() as status if status.agent == self.name:
                self._check_name(status, retained=delivery.retained)
            case messages.Run() as run:
                self._meet(run)
            case messages.Goodbye() as goodbye:
                self.over = goodbye.reason
            case messages.Refusal() as refusal if refusal.about == JOINING:
                self.over, self.refused = refusal.reason, True
            case messages.Refusal() as refusal:
                log.warning("the coordinator refused a message (%s): %s", refusal.about, refusal.reason)
            case _:
                pass

    def _reach(self, *, online: bool) -> None:
        """The link went down, or is back: a broker that restarted may have forgotten who is here, and what was under way."""
        self._outbox.online = online
        self._weights.reach(self.clock(), online=online)
        if online:
            self._namesake.returned()
            self.link.subscribe(topics.status(self.run.run, self.name))  # who is here by the broker's account, before it is said anew
            self._introduce()
            self._outbox.offer()

    def _check_name(self, status: messages.Status, *, retained: bool) -> None:
        """Of two agents of one name the older leaves."""
        match self._namesake.hear(status, retained=retained):
            case "leave":
                self.over, self.refused = f"another agent joined under the name '{self.name}': give each its own (--name)", True
            case "stay":
                log.warning("another agent joined under the name '%s', and is told to leave: give each its own (--name)", self.name)
                self._introduce()

    def _meet(self, run: messages.Run) -> None:
        """A card that is new: of a coordinator that came back and goes on, or of one that changed the run or learned what the data look like."""
        if run.run != self.run.run or run == self.run:
            return
        known, self.run = self.run, run
        self._setbacks.clear()
        if replace(run, session="") != replace(known, session=""):
            self._drop(lambda task: True, "the run changed")
            self.profile = self._measure(run)  # another network to time, or another method's survey
        self._introduce()
        self._outbox.offer()

    def _accept(self, task: Task) -> None:
        if (task.run, task.agent) != (self.run.run, self.name):
            raise Refused(f"a task for {task.agent} of {task.run} came to {self.name} of {self.run.run}")

        def same(other: Task) -> bool:
            return same_work(task, other) and task.attempt == other.attempt

        until = self.clock() + task.deadline
        if self._workload.renew(task, same, until, self.clock()):
            return  # a broker may deliver twice, and a coordinator that came back ask again: it has time anew
        if any(same(other) for other in self._outbox.tasks()):
            self._outbox.offer(same)
            return
        if self._setbacks.repeat(task):  # it was not heard
            return
        self._drop(partial(_outdates, task), "a newer task came")
        if self.paused:
            self._setbacks.say(task, self.paused, paused=True)
            return
        self._workload.add(task, until)

    def _settle(self, receipt: messages.Receipt) -> None:
        task = self._outbox.settle(receipt.transfer)
        if task is None:
            return
        if not receipt.accepted:
            log.warning("round %d: the coordinator refused the update: %s", task.round, receipt.reason, extra=about(task, "refused"))
        elif task.work == "train":
            self.finished += 1

    # ---- doing -----------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        self._rest(now)
        for outcome in self._workload.advance(now, online=self._outbox.online):
            self._finish(outcome)
        self._outbox.send(now)
        self._beat(now)

    def _rest(self, now: float) -> None:
        """Says so when the device is no longer to work, or may again."""
        if now - self._asked < LOOK:
            return
        self._asked, before, self.paused = now, self.paused, self._pause()
        if self.paused != before:
            log.info("%s", f"pausing: {self.paused}" if self.paused else "going on")
            if self._outbox.online:  # else it is said with the link's return
                self._say_status(online=True)

    def _finish(self, outcome: Outcome) -> None:
        task, reason, self._loss = outcome.task, outcome.reason, outcome.loss
        if outcome.path is not None:
            try:
                self._outbox.add(task, outcome.path, self.run)
            except (OSError, ValueError) as error:
                reason = f"its update cannot be read: {error}"
            else:
                self._bound(task)
                return
        self.spool.forget(transfer_of(task))
        self._setbacks.say(task, reason)

    def _bound(self, task: Task) -> None:
        """Keeps the spool within its limit: old weights go first, then old updates."""
        self._weights.bound(task.digest)
        while self.spool.excess() and (old := self._outbox.tasks()[0]) is not task:
            log.warning("the spool is full: the update of round %d is given up", old.round)
            self._outbox.drop(lambda other, old=old: other is old)  # type: ignore[misc]

    def _drop(self, chosen: Callable[[Task], bool], why: str) -> None:
        """Forgets the chosen tasks, wherever they are."""
        self._workload.drop(chosen, why)
        self._outbox.drop(chosen)

    def _beat(self, now: float) -> None:
        """Heartbeats, more often the shorter the task, and at each change of state: people see what happens, and the coordinator that it does."""
        pace = min(HEARTBEAT, beats(self._workload.lease))
        if not self._outbox.online or (now - self._beaten[0] < pace and self._beaten[1] == self.state):
            return
        self._beaten = now, self.state
        task = self._workload.working
        work, (step, steps) = task.work if task else "", self._workload.progress
        beat = messages.Heartbeat(self.name, self.session, self.state, task.round if task else 0, self._loss, work, step, steps)
        self.link.publish(topics.heartbeat(self.run.run, self.name), envelope.encode(beat), qos=0)


def _outdates(task: Task, other: Task) -> bool:
    """Whether nobody waits for `other` once `task` came. A training may be awaited while its weights, or later ones, are evaluated."""
    return (other.round, other.attempt) < (task.round, task.attempt) and (task.work == "train" or other.work != "train")
