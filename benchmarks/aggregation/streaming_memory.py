"""Measure by how much the memory of a process grows while it adds updates one by one.

`python -m benchmarks.aggregation.streaming_memory FOLDER` prints the bytes. The mapped files of the
updates do not count, since the system can free their pages at any time.
"""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

from benchmarks.aggregation.command import ours

__all__ = ["main"]

SAMPLE = 0.001  # seconds between samples
STATUS = Path("/proc/self/status")  # of Linux


def read_own_memory() -> int:
    """Return the bytes of this process that are not in files."""
    found = re.search(r"^RssAnon:\s*(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert found, f"{STATUS}: expected RssAnon"
    return 1024 * int(found[1])


def main() -> None:
    aggregate, ended = ours({"method": "fedavg", "folder": sys.argv[1]}), threading.Event()
    base = peak = read_own_memory()

    def sample() -> None:
        nonlocal peak
        while not ended.wait(SAMPLE):
            peak = max(peak, read_own_memory())

    sampler = threading.Thread(target=sample)
    sampler.start()
    aggregated = aggregate()
    ended.set()
    sampler.join()
    peak = max(peak, read_own_memory())
    del aggregated
    print(peak - base)


if __name__ == "__main__":
    main()
