"""Recording of the calls that sync, rename and remove files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["record_disk_calls"]


def record_disk_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record each fsync, rename and removal as it happens: (call, path), for a rename the new
    path.
    """
    calls = list[tuple[str, str]]()

    def record(name: str, place: int) -> None:
        real = getattr(os, name)

        def call(*given: object, **named: object) -> object:
            target = given[place]
            path = (
                str(Path(f"/proc/self/fd/{target}").readlink()) if name == "fsync" else str(target)
            )
            result = real(*given, **named)
            calls.append((name, path))
            return result

        monkeypatch.setattr(os, name, call)

    for name, place in (("fsync", 0), ("rename", 1), ("replace", 1), ("unlink", 0)):
        record(name, place)
    return calls
