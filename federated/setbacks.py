"""Tasks that came to nothing: each is said to the coordinator, and again where it did not hear of it and asks for the same again."""

from __future__ import annotations

import logging
from collections import OrderedDict

from federated.task import Task
from federated.wire import envelope, messages, topics
from federated.wire.link import Link

__all__ = ["REMEMBERED", "Setbacks", "about"]

log = logging.getLogger(__name__)

REMEMBERED = 16  # tasks that came to nothing, of which it is said again when they are asked for again


class Setbacks:
    """What one agent could not do in a run."""

    def __init__(self, link: Link, run: str, agent: str) -> None:
        self._link, self._topic = link, topics.say(run, agent)
        self._known = OrderedDict[tuple[int, int, str, str], messages.Failure]()

    def say(self, task: Task, reason: str, *, paused: bool = False) -> None:
        """Logs and tells that a task came to nothing. paused: the device may do it later, and it is not remembered."""
        how = "not tried" if paused else "failed"
        log.warning("round %d: %s %s: %s", task.round, task.work, how, reason, extra=about(task, how))
        failure = messages.Failure(task.run, task.round, task.attempt, task.work, task.submodel.name, reason[:4000], paused)
        if not paused:
            self._known[_key(task)] = failure
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        self._tell(failure)

    def repeat(self, task: Task) -> bool:
        """Tells again how a task ended, where that is known; whether it is."""
        if (failure := self._known.get(_key(task))) is None:
            return False
        self._tell(failure)
        return True

    def clear(self) -> None:
        """Forgets them: another coordinator may be luckier."""
        self._known.clear()

    def _tell(self, failure: messages.Failure) -> None:
        self._link.publish(self._topic, envelope.encode(failure))


def _key(task: Task) -> tuple[int, int, str, str]:
    return task.round, task.attempt, task.work, task.submodel.name


def about(task: Task, event: str) -> dict[str, object]:
    """The fields of a line in the log that is about a task."""
    return {"event": event, "run": task.run, "round": task.round, "agent": task.agent, "work": task.work, "submodel": task.submodel.name}
