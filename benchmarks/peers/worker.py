"""Run one implementation of a benchmarked task, this project's or a peer's, in its own process:
prepare the task, and repeat it for each line of standard input.

The process prints `ready`, and then the milliseconds of each run: of processor time, which other
processes disturb less, or of elapsed time, where the task has several threads.
"""

from __future__ import annotations

import importlib
import json
import sys
import time

__all__ = ["main"]


def main() -> None:
    module, function, text = sys.argv[1:]
    task = json.loads(text)
    run = getattr(importlib.import_module(module), function)(task)
    clock = time.perf_counter if task.get("threads", 1) > 1 else time.process_time
    print("ready", flush=True)
    for _ in sys.stdin:
        start = clock()
        kept = run()
        milliseconds = 1000 * (clock() - start)
        del kept
        print(milliseconds, flush=True)


if __name__ == "__main__":
    main()
