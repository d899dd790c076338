"""Time several implementations of one task in turns, each in its own process, so that disturbances
of the machine affect all alike.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.interleaved_timing import RUNS
from benchmarks.peers.environments import PEERS, set_up

__all__ = ["hold"]

K = TypeVar("K")
ROOT = Path(__file__).parents[2]
# seconds before each run: the threads of OpenMP wait busily for milliseconds after their work, and
# would take a processor from the next contestant
PAUSE = 0.02


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


def hold(tasks: Mapping[K, tuple[str, Mapping[str, Any]]]) -> dict[K, float]:
    """Return the median milliseconds of elapsed time of each task: an entry, which is a function as
    `module:function` that prepares the task and returns the function to time, and its argument.

    The argument's `threads`, 1 by default, limit those of the process.
    """
    with ExitStack() as stack:
        them = {key: stack.enter_context(Contestant(*task)) for key, task in tasks.items()}
        for one in them.values():
            one.wait()
        times: dict[K, list[float]] = {key: [] for key in tasks}
        for turn in range(RUNS + 1):
            for key, one in them.items():
                time.sleep(PAUSE)
                found = one.run()
                if turn:  # the first is a warm-up
                    times[key].append(found)
    return {key: statistics.median(found) for key, found in times.items()}
