"""`python -m benchmarks.attacks.coordinator_with_jumping_clock SECONDS COUNT ARGUMENTS...`: run
`coordinator ARGUMENTS...` with a system clock that jumps by SECONDS after COUNT updates.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    seconds, count, *rest = arguments
    from coordinator.cli import main as cli
    from coordinator.observe import events
    from coordinator.phases import training

    read, measure, folds = time.time, events.time_stage, 0

    @contextmanager
    def count_folds(publish: Any, what: str) -> Iterator[None]:
        nonlocal folds
        with measure(publish, what):
            yield
        folds += what == "fold"

    training.time_stage = count_folds  # type: ignore[attr-defined, assignment]
    time.time = lambda: read() + (float(seconds) if folds >= int(count) else 0.0)
    sys.argv = ["coordinator", *rest]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
