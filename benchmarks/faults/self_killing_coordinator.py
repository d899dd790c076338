"""Run a coordinator that kills itself (SIGKILL) at a chosen moment of a round:

python -m benchmarks.faults.self_killing_coordinator STAGE WHEN COUNT SHARE ARGUMENTS...

STAGE: fold, snapshot, finish, evaluate or save
WHEN: before, during or after its COUNT-th time
SHARE: for during, fraction of the time that the stage took before
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

__all__ = ["Fuse", "main"]

FIRST = 0.005  # assumed seconds of the first stage


def die() -> None:
    """Kill this process at once, without flushing anything."""
    os.kill(os.getpid(), signal.SIGKILL)


class Fuse:
    """Replacement for `coordinator.observe.events.timing` that kills the process at the chosen
    instant.
    """

    def __init__(
        self,
        timing: Callable[[Any, str], AbstractContextManager[None]],
        stage: str,
        when: str,
        count: int,
        share: float,
    ) -> None:
        self._timing, self._stage, self._when = timing, stage, when
        self._count, self._share = count, share
        self._seen, self._took = 0, FIRST

    @contextmanager
    def __call__(self, publish: Any, what: str) -> Iterator[None]:
        if what != self._stage:
            with self._timing(publish, what):
                yield
            return
        self._seen += 1
        now = self._seen == self._count
        if now and self._when == "before":
            die()
        if now and self._when == "during":
            threading.Thread(target=self._burn, daemon=True).start()
        start = time.perf_counter()
        with self._timing(publish, what):
            yield
        self._took = time.perf_counter() - start
        if now:
            die()

    def _burn(self) -> None:
        time.sleep(self._took * self._share)
        die()


def main(arguments: list[str]) -> None:
    stage, when, count, share, *rest = arguments
    from coordinator.cli import main as cli
    from coordinator.observe import events
    from coordinator.phases import training
    from coordinator.run import rounds

    fuse = Fuse(events.time_stage, stage, when, int(count), float(share))
    # both modules imported the name
    rounds.time_stage = training.time_stage = fuse  # type: ignore[attr-defined, assignment]
    sys.argv = ["coordinator", *rest]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
