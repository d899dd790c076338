"""Sizes of networks as their authors' code builds them, from the notes that lie beside a checkout of the project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

__all__ = ["published"]

NOTES = Path(__file__).resolve().parents[2].parent / "shared" / "design" / "arch_counts.json"


def published(key: str) -> tuple[int, int]:
    """Parameters and multiply-adds under a key of the notes. Skips where there are none."""
    if not NOTES.exists():
        pytest.skip("the notes with the sizes of published networks are not beside this checkout")
    found = json.loads(NOTES.read_text())[key]
    return found["params"], found["macs"]
