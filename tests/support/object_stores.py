"""Skip tests on machines without an S3-compatible store."""

from __future__ import annotations

import pytest

from benchmarks.faults.parts.object_store import find_weed

__all__ = ["needs_store"]

needs_store = pytest.mark.skipif(find_weed() is None, reason="SeaweedFS is not installed")
