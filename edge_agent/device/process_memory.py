"""Read the resident memory of a process and its peak, as the kernel counts them (proc(5)). Does not
import torch.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import psutil

from edge_agent.device.sysfs import read_text

__all__ = ["SELF", "read_memory", "reset_peak"]

SELF = Path("/proc/self")


def read_memory(process: Path = SELF) -> tuple[int, int]:
    """Return the resident bytes of a process now and at their peak; 0 for what is not reported, as
    the peak on macOS. `ru_maxrss` would include the parent's peak.
    """
    sizes = re.findall(r"^(VmRSS|VmHWM):\s*(\d+) kB$", read_text(process / "status"), re.MULTILINE)
    if not sizes and process == SELF:  # not Linux
        memory = psutil.Process().memory_info()
        return memory.rss, getattr(memory, "peak_wset", 0)
    found = {name: int(size) * 1024 for name, size in sizes}
    return found.get("VmRSS", 0), found.get("VmHWM", 0)


def reset_peak(process: Path = SELF) -> None:
    """Set the peak to the present memory, if the system allows it."""
    with contextlib.suppress(OSError):
        (process / "clear_refs").write_text("5")
