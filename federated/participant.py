"""The agent's half of the protocol: hears tasks, fetches weights, hands work to a trainer, sends updates.

It knows the wire and nothing of PyTorch, processes or limits, so that a device, a simulation and a test all
speak through it. Everything is driven by `turn`, which handles at most one delivery and all timers.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from federated.errors import Refused, WireError
from federated.task import Profile, Task
from federated.wire import messages, topics
from federated.wire.chunks import Sender, split
from federated.wire.link import LINK_UP, Delivery, Link
from federated.wire.transfer import Download

__all__ = ["JOINING", "Outcome", "Participant", "Trainer", "same_work"]

log = logging.getLogger(__name__)

JOINING = "joining"  # what a Refusal is about when it turns the agent away
HEARTBEAT = 15.0  # seconds; the coordinator counts three missed ones as death
LOOK = 5.0  # seconds between looks at whether the device may work
CACHED = 8  # downloads kept on disk: a calibration's weights are the next round's


@dataclass(frozen=True)
class Outcome:
    """How a task ended: the file of its encoded update, or the reason why there is none."""

    task: Task
    path: Path | None
    reason: str = ""
    loss: float = float("nan")


class Trainer(Protocol):
    """Whatever does the work of a task, in the background, one at a time."""

    def begin(self, task: Task, weights: Path, result: Path) -> None:
        """Starts on a task whose weights lie encoded in `weights`; the encoded update goes to `result`."""

    def poll(self) -> Outcome | None:
        """The outcome, once there is one; never waits."""

    def cancel(self) -> None:
        """Gives up the present task; `poll` then has nothing of it."""


@dataclass
class Sending:
    """An update on its way to the coordinator; given up at `until` (seconds of the participant's clock)."""

    task: Task
    sender: Sender
    path: Path
    until: float


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
        spool: Path,
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
        self.link, self.run, self.trainer, self.spool = link, run, trainer, spool
        self.name, self.session, self.clock = name, session, clock
        self._measure = measure
        self._pause = pause
        self.paused = pause()
        self._asked = clock()  # when `pause` was
        self.profile = measure(run)
        self.over = ""  # why this agent is done, once it is
        self.refused = False  # whether it was turned away
        self.finished = 0  # updates that the coordinator accepted
        self._queue: deque[tuple[Task, float]] = deque()
        self._download: tuple[Task, Download, float] | None = None
        self._working: tuple[Task, float] | None = None
        self._sending: dict[str, Sending] = {}
        self._weights = OrderedDict[str, Path]() if weights is None else weights
        self._cached = cached
        self._loss = float("nan")
        self._beaten: tuple[float, str] = (0.0, "")
        spool.mkdir(parents=True, exist_ok=True)

    # ---- life ------------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Listens, and says who is here: the measured profile, then the birth, both retained."""
        for pattern in topics.agent_patterns(self.run.run, self.name):
            self.link.subscribe(pattern)
        self._introduce()

    def leave(self) -> None:
        """Stops the work and signs off; where that cannot be sent, the will says it. Of a run that is over, nothing stays retained."""
        self._drop(lambda task: True, "leaving")
        if self.over and not self.refused:
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
        if self._working is not None:
            return self._working[0].work
        if self._download is not None:
            return "download"
        return "send" if self._sending else "idle"

    def _introduce(self) -> None:
        self.link.publish(topics.profile(self.run.run, self.name), messages.encode(self.profile), retain=True)
        self._say_status(online=True)

    def _say_status(self, *, online: bool) -> None:
        status = messages.Status(self.name, self.session, online, self.paused)
        self.link.publish(topics.status(self.run.run, self.name), messages.encode(status), retain=True)

    # ---- hearing ---------------------------------------------------------------------------------------------------

    def _hear(self, delivery: Delivery) -> None:
        if delivery.topic == LINK_UP:
            self._introduce()
        if not delivery.payload or delivery.topic.startswith("$"):
            return
        match messages.decode(delivery.payload):
            case Task() as task:
                self._accept(task)
            case messages.Manifest() | messages.Chunk() as message:
                self._fetch(delivery.topic, message)
            case messages.Grant() as grant:
                if grant.transfer in self._sending:
                    self._sending[grant.transfer].sender.granted(grant.have, grant.open, self.clock())
            case messages.Receipt() as receipt:
                self._settle(receipt)
            case messages.Abort() as abort:
                self._drop(lambda task: task.round <= abort.round and task.attempt <= abort.attempt, abort.reason)
            case messages.Status() as status if not delivery.retained:  # a retained one may be of a life long ago
                self._check_name(status)
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

    def _check_name(self, status: messages.Status) -> None:
        if status.agent == self.name and status.session != self.session and status.online:
            self.over, self.refused = f"another agent joined under the name '{self.name}': give each its own (--name)", True

    def _meet(self, run: messages.Run) -> None:
        """A card that is new: of a coordinator that came back and knows no task of before, or of one that has learned what the data look like."""
        if run.run != self.run.run or run == self.run:
            return
        known, self.run = self.run, run
        if run.session != known.session or run.network != known.network:
            self._drop(lambda task: True, "the coordinator came back")
            if replace(run, session="") != replace(known, session=""):  # another network to time, or another method's survey
                self.profile = self._measure(run)
            self._introduce()

    def _accept(self, task: Task) -> None:
        if (task.run, task.agent) != (self.run.run, self.name):
            raise Refused(f"a task for {task.agent} of {task.run} came to {self.name} of {self.run.run}")
        known = [t for t, _ in self._queue] + [s.task for s in self._sending.values()]
        known += [self._working[0]] if self._working else []
        known += [self._download[0]] if self._download else []
        if any(same_work(task, other) and task.attempt == other.attempt for other in known):
            return  # a broker may deliver twice
        self._drop(lambda other: (other.attempt, other.round) < (task.attempt, task.round), "a newer task came")
        if self.paused:
            self._fail(task, self.paused, paused=True)
            return
        self._queue.append((task, self.clock() + task.deadline))

    def _fetch(self, topic: str, message: messages.Manifest | messages.Chunk) -> None:
        if self._download is None or not topic.startswith(self._download[1].base + "/"):
            return
        task, download, until = self._download
        try:
            whole = download.hear(message, self.clock())
        except OSError as error:
            download.close()
            self._download = None
            self._fail(task, f"no room for its weights ({task.size} bytes) in {self.spool}: {error.strerror}")
            return
        if whole:
            self._download = None
            self._cache(task.digest, download.path)
            self._begin(task, until)

    def _settle(self, receipt: messages.Receipt) -> None:
        sending = self._sending.pop(receipt.transfer, None)
        if sending is None:
            return
        sending.path.unlink(missing_ok=True)
        if receipt.accepted:
            if sending.task.work == "train":
                self.finished += 1
        else:
            log.warning("round %d: the coordinator refused the update: %s", sending.task.round, receipt.reason)

    # ---- doing -----------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        self._drop_late(now)
        self._rest(now)
        if self._working is not None and (outcome := self.trainer.poll()) is not None:
            self._finish(outcome)
        if self._queue and self._working is None and self._download is None:
            self._next(*self._queue.popleft(), now)
        if self._download is not None:
            self._download[1].tick(now)
        for sending in list(self._sending.values()):
            self._send(sending, now)
        self._beat(now)

    def _rest(self, now: float) -> None:
        """Says so when the device is no longer to work, or may again."""
        if now - self._asked < LOOK:
            return
        self._asked, before, self.paused = now, self.paused, self._pause()
        if self.paused != before:
            log.info("%s", f"pausing: {self.paused}" if self.paused else "going on")
            self._say_status(online=True)

    def _next(self, task: Task, until: float, now: float) -> None:
        if (path := self._weights.get(task.digest)) is not None:
            self._weights.move_to_end(task.digest)
            self._begin(task, until)
            return
        base = topics.model(task.run, task.version, task.submodel.name)
        path = self.spool / f"{task.digest}.weights"
        self._download = task, Download(self.link, base, task.digest, task.size, path, now), until

    def _cache(self, digest: str, path: Path) -> None:
        if digest in self._weights:  # another participant was quicker
            path.unlink()
            return
        self._weights[digest] = path
        while len(self._weights) > self._cached:
            self._weights.popitem(last=False)[1].unlink(missing_ok=True)

    def _begin(self, task: Task, until: float) -> None:
        result = self.spool / f"{task.round}-{task.attempt}-{task.work}-{task.submodel.name}.update"
        self._working = task, until
        self.trainer.begin(task, self._weights[task.digest], result)

    def _finish(self, outcome: Outcome) -> None:
        assert self._working is not None
        task, until = self._working
        self._working, self._loss = None, outcome.loss
        if outcome.path is None:
            self._fail(task, outcome.reason)
            return
        data = memoryview(outcome.path.read_bytes())
        transfer = f"{task.round}-{task.attempt}-{task.work}-{task.submodel.name}".replace("@", "_")
        sender = Sender(split(data, self.link.max_chunk, transfer), data)
        self._sending[transfer] = Sending(task, sender, outcome.path, until)
        self._offer(self._sending[transfer])

    def _fail(self, task: Task, reason: str, *, paused: bool = False) -> None:
        log.warning("round %d: %s %s: %s", task.round, task.work, "not tried" if paused else "failed", reason)
        failure = messages.Failure(task.run, task.round, task.attempt, task.work, task.submodel.name, reason[:4000], paused)
        self.link.publish(topics.say(self.run.run, self.name), messages.encode(failure))

    def _offer(self, sending: Sending) -> None:
        task = sending.task
        offer = messages.Offer(sending.sender.manifest, task.run, task.round, task.attempt, task.work, task.submodel.name)
        self.link.publish(topics.say(self.run.run, self.name), messages.encode(offer))

    def _send(self, sending: Sending, now: float) -> None:
        if sending.sender.stalled(now):
            self._offer(sending)  # the answer says what the coordinator has
        base = topics.upload(self.run.run, self.name, sending.sender.manifest.transfer)
        for chunk in sending.sender.due(now):
            self.link.publish(topics.chunk(base, chunk.index), messages.encode(chunk))

    def _drop_late(self, now: float) -> None:
        late = {id(task) for task, until in self._timed() if now > until}
        if late:
            self._drop(lambda task: id(task) in late, "its deadline passed")

    def _timed(self) -> list[tuple[Task, float]]:
        timed = [*self._queue, *((s.task, s.until) for s in self._sending.values())]
        timed += [self._working] if self._working else []
        return timed + ([(self._download[0], self._download[2])] if self._download else [])

    def _drop(self, chosen: Callable[[Task], bool], why: str) -> None:
        """Forgets the chosen tasks, wherever they are."""
        if any(chosen(task) for task, _ in self._timed()):
            log.info("dropping work: %s", why)
        self._queue = deque((task, until) for task, until in self._queue if not chosen(task))
        if self._download is not None and chosen(self._download[0]):
            self._download[1].close()
            self._download = None
        if self._working is not None and chosen(self._working[0]):
            self.trainer.cancel()
            self._working = None
        for transfer in [t for t, sending in self._sending.items() if chosen(sending.task)]:
            self._sending.pop(transfer).path.unlink(missing_ok=True)

    def _beat(self, now: float) -> None:
        """Heartbeats every 15 s and at each change of state, so that people see what happens."""
        if now - self._beaten[0] < HEARTBEAT and self._beaten[1] == self.state:
            return
        self._beaten = now, self.state
        task = self._working[0] if self._working else None
        beat = messages.Heartbeat(self.name, self.session, self.state, task.round if task else 0, self._loss)
        self.link.publish(topics.heartbeat(self.run.run, self.name), messages.encode(beat), qos=0)
