"""Measure the seconds, processor time and memory of a simulation, in the process that runs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.peers.process_usage import read_processor_seconds, read_shared_memory
from benchmarks.simulation.task import CHOSEN

__all__ = ["Contestant", "Measured", "Meter"]


@dataclass(frozen=True)
class Measured:
    """What a simulation needed.

    first: seconds until the end of the first round, after imports.
    round: seconds of each further round.
    client: seconds of processor time per client, in all processes, after the first round.
    size: bytes of memory of all processes at the end of the last round.
    accuracy: of the final network.
    """

    first: float
    round: float
    client: float
    size: int
    accuracy: float


class Meter:
    """Call `end_round` at the end of each round. Time counts from the construction of the meter.

    rounds: that the simulation takes, at least 2.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self._done = 0
        self._start = time.perf_counter()
        self._first = self._last = self._used = 0.0
        self._size = 0

    def end_round(self) -> None:
        self._done += 1
        if self._done == 1:
            self._first, self._used = time.perf_counter(), read_processor_seconds()
        elif self._done == self.rounds:
            self._last = time.perf_counter()
            self._used = read_processor_seconds() - self._used
            self._size = read_shared_memory()

    def conclude(self, accuracy: float) -> Measured:
        """Return the result. accuracy: of the final network."""
        assert self._done == self.rounds, f"{self._done} of {self.rounds} rounds"
        further = self.rounds - 1
        return Measured(
            self._first - self._start,
            (self._last - self._first) / further,
            self._used / further / CHOSEN,
            self._size,
            accuracy,
        )


Contestant = Callable[[int], Measured]
"""A function that simulates this number of rounds."""
