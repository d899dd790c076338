"""Replace real time by a virtual clock with a queue of events, which are handled one at a time in
one thread. A process can be set to die before one of its actions.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

__all__ = ["Killed", "Process", "Stalled", "World"]

Callback: TypeAlias = Callable[[], None]


class Killed(BaseException):
    """A process died between two of its actions. While the exception propagates, nothing that the
    process does has an effect.
    """


class Process:
    """One party of a schedule: the coordinator or an agent.

    actions: number of actions: messages that it sent or waited for, files that it wrote or synced
    deaths: numbers of actions before which it dies, each with what is called after the death
    dead: True from its death until it is restarted
    paused: time until which it stands still
    leap: seconds that its clock is ahead
    """

    def __init__(self, name: str) -> None:
        self.name, self.actions = name, 0
        self.deaths: dict[int, Callback] = {}
        self.dead = False
        self._after_death: Callback = lambda: None
        self.paused = self.leap = 0.0

    def end_death(self) -> None:
        """Call what was planned for after the death, and allow a restart."""
        self.dead, callback, self._after_death = False, self._after_death, lambda: None
        callback()

    def count_action(self) -> None:
        """Count an action. Killed: the process dies before it, or is dead."""
        self.actions += 1
        callback = self.deaths.pop(self.actions, None)
        if callback is not None:
            self.dead, self._after_death = True, callback
        if self.dead:
            raise Killed(self.name)


class Stalled(BaseException):
    """Virtual time ran out."""


class World:
    """Clock and due events.

    running: process that has the turn
    limit: seconds until Stalled is raised
    trainings: number begun
    repeated: agents that trained again after they had offered the update
    """

    def __init__(self, seed: int, limit: float) -> None:
        self.now, self.limit = 0.0, limit
        self.trainings, self.repeated = 0, list[str]()
        self.random = random.Random(seed)  # noqa: S311  # no secret
        self.running: Process | None = None
        self._due: list[tuple[float, int, Callback]] = []
        self._count = 0

    def clock(self, process: Process) -> float:
        """Return the time that a process reads, in seconds."""
        return self.now + process.leap

    @contextmanager
    def turn_of(self, process: Process | None) -> Iterator[None]:
        """Give a process the turn inside this context."""
        before, self.running = self.running, process
        try:
            yield
        finally:
            self.running = before

    def after(self, seconds: float, callback: Callback) -> None:
        """Schedule a function at a time from now."""
        self._count += 1
        heapq.heappush(self._due, (self.now + seconds, self._count, callback))

    def step(self, until: float) -> bool:
        """Run the next event due by `until`. Return False if there is none, and advance the clock
        to `until`.

        Stalled: the limit is exceeded.
        """
        if self.now > self.limit:
            raise Stalled
        if not self._due or self._due[0][0] > until:
            self.now = max(self.now, until)
            return False
        when, _, callback = heapq.heappop(self._due)
        self.now = max(self.now, when)
        with self.turn_of(None):
            callback()
        return True
