"""Virtual time: what is due next happens next, in one thread, and whose turn it is decides who
dies.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

__all__ = ["Killed", "Process", "Stalled", "World"]

Happening: TypeAlias = Callable[[], None]


class Killed(BaseException):
    """A process ended between two of its actions. Nothing that it does while the exception passes
    through it has an effect.
    """


class Process:
    """One party of a schedule: the coordinator or an agent.

    pulses: actions so far: messages that it sent or waited for, files that it wrote or synced.
    fuses: actions before which it dies, each with what follows. dead: whether it does nothing more.
    paused: until when it stands still. leap: seconds that its clock is ahead.
    """

    def __init__(self, name: str) -> None:
        self.name, self.pulses = name, 0
        self.fuses: dict[int, Happening] = {}
        self.dead = False
        self._afterwards: Happening = lambda: None
        self.paused = self.leap = 0.0

    def bury(self) -> None:
        """After its death: what follows from it happens, and the next life may begin."""
        self.dead, follow, self._afterwards = False, self._afterwards, lambda: None
        follow()

    def pulse(self) -> None:
        """Counts an action. Raises Killed where the process dies before it, or is dead."""
        self.pulses += 1
        follow = self.fuses.pop(self.pulses, None)
        if follow is not None:
            self.dead, self._afterwards = True, follow
        if self.dead:
            raise Killed(self.name)


class Stalled(BaseException):
    """Virtual time ran out."""


class World:
    """The clock, and what is due.

    running: the process whose turn it is.
    limit: seconds after which Stalled is raised.
    trainings: begun so far.
    repeated: agents that began one whose update they had offered already.
    """

    def __init__(self, seed: int, limit: float) -> None:
        self.now, self.limit = 0.0, limit
        self.trainings, self.repeated = 0, list[str]()
        self.random = random.Random(seed)  # noqa: S311  # no secret
        self.running: Process | None = None
        self._due: list[tuple[float, int, Happening]] = []
        self._count = 0

    def clock(self, process: Process) -> float:
        """The seconds that a process reads."""
        return self.now + process.leap

    @contextmanager
    def turn_of(self, process: Process | None) -> Iterator[None]:
        """As long as this lasts, what happens is done by this process."""
        before, self.running = self.running, process
        try:
            yield
        finally:
            self.running = before

    def after(self, seconds: float, happening: Happening) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.now + seconds, self._count, happening))

    def step(self, until: float) -> bool:
        """Lets the next thing happen that is due by then; False where nothing is, and it is then.
        Raises Stalled.
        """
        if self.now > self.limit:
            raise Stalled
        if not self._due or self._due[0][0] > until:
            self.now = max(self.now, until)
            return False
        when, _, happening = heapq.heappop(self._due)
        self.now = max(self.now, when)
        with self.turn_of(None):
            happening()
        return True
