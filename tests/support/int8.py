"""Check that this machine computes int8 graphs exactly."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

__all__ = ["exact_int8"]


def has_exact_int8() -> bool:
    """Return True if int8 is exact. Without VNNI, x86 processors add pairs of int8 products in 16
    bits, which saturates: ONNX Runtime then gives other answers for the same graph.
    """
    cpu = Path("/proc/cpuinfo")
    if platform.machine() not in ("x86_64", "AMD64") or not cpu.exists():
        return True
    return "vnni" in cpu.read_text()


exact_int8 = pytest.mark.skipif(
    not has_exact_int8(), reason="int8 saturates on this processor, which has no VNNI"
)
