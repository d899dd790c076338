"""Time several implementations of one task in turns, each in its own process, so that disturbances
of the machine affect all alike.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.interleaved_timing import RUNS
from benchmarks.peers.environments import PEERS, set_up

__all__ = ["hold"]

ROOT = Path(__file__).parents[2]


class Contestant:
    """A process that prepares a task once, and repeats it on request."""

    def __init__(self, entry: str, task: Mapping[str, Any]) -> None:
        module, _, function = entry.partition(":")
        peer = module.rpartition(".")[2]
        python = str(set_up(peer)) if peer in PEERS else sys.executable
        words = ["-m", "benchmarks.peers.worker", module, function, json.dumps(dict(task))]
        threads = str(task.get("threads", 1))
        self._process = subprocess.Popen(  # noqa: S603
            [python, *words],
            env={
                **os.environ,
                "OMP_NUM_THREADS": threads,
                "OPENBLAS_NUM_THREADS": threads,
                "PYTHONPATH": str(ROOT),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it

    def wait(self) -> None:
        """Wait until the task is prepared."""
        self._read()

    def run(self) -> float:
        """Run the task once, and return its milliseconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"a contestant ended: {self._process.args!r}")
        return line


def hold(entries: Sequence[str], task: Mapping[str, Any]) -> dict[str, float]:
    """Return the median milliseconds of each entry, a function as `module:function` that prepares a
    task and returns the function to time.

    task: its `threads`, 1 by default, limit those of each process; with several, elapsed time
        counts, otherwise processor time
    """
    with ExitStack() as stack:
        them = {entry: stack.enter_context(Contestant(entry, task)) for entry in entries}
        for one in them.values():
            one.wait()
        times: dict[str, list[float]] = {entry: [] for entry in entries}
        for turn in range(RUNS + 1):
            for entry, one in them.items():
                found = one.run()
                if turn:  # the first is a warm-up
                    times[entry].append(found)
    return {entry: statistics.median(found) for entry, found in times.items()}
