"""Decide what a power cut leaves of unsynced writes: names in a folder, and contents of files."""

from __future__ import annotations

import random
from typing import TypeVar

__all__ = ["choose_name", "tear"]

T = TypeVar("T")


def choose_name(now: T | None, synced: T | None, rng: random.Random) -> T | None:
    """Return what a name of a folder refers to after a power cut; None if the name is gone.

    now: what it refers to; None if it was removed
    synced: what it referred to at the last sync of the folder; None if it did not exist
    """
    return synced if now != synced and rng.random() < 0.5 else now


def tear(now: bytes, synced: bytes, rng: random.Random) -> bytes:
    """Return the content of a file after a power cut. synced: content at its last sync."""
    if now == synced:
        return now
    if not now.startswith(synced):
        return now if rng.random() < 0.5 else synced
    end = rng.randint(len(synced), len(now))
    return now[:end] + bytes(rng.randint(0, len(now) - end) if rng.random() < 0.25 else 0)
