"""Run one implementation of a benchmarked task, this project's or a peer's, in its own process:
prepare the task, and repeat it for each line of standard input.

The process prints `ready`, and then the milliseconds of elapsed time of each run.
"""

from __future__ import annotations

import importlib
import json
import sys
import time

__all__ = ["main"]


def main() -> None:
    module, function, text = sys.argv[1:]
    run = getattr(importlib.import_module(module), function)(json.loads(text))
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        kept = run()
        milliseconds = 1000 * (time.perf_counter() - start)
        del kept
        print(milliseconds, flush=True)


if __name__ == "__main__":
    main()
