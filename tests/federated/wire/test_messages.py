"""Limits that messages state."""

from __future__ import annotations

from federated.wire import messages as m


def test_a_manifest_counts_a_last_short_chunk() -> None:
    assert [m.Manifest("t", size, 1024, "0" * 64).total for size in (0, 1, 1024, 1025, 3000)] == [
        0,
        1,
        1,
        2,
        3,
    ]
