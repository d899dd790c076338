"""Rectangles cut into smaller ones, to process large tensors without a copy."""

from __future__ import annotations

import math
from collections.abc import Iterator

from models.slicing import Where

__all__ = ["blocks"]


def blocks(where: Where, most: int) -> Iterator[Where]:
    """Yield a rectangle cut along its first axes into blocks of at most `most` entries, each
    contiguous in memory.
    """
    extent = [b - a for a, b in where]
    if math.prod(extent) <= most:
        yield where
        return
    axis = next(i for i, n in enumerate(extent) if n > 1)
    inner = math.prod(extent[axis + 1 :])
    a, b = where[axis]
    step = max(1, most // inner)
    for start in range(a, b, step):
        piece = (*where[:axis], (start, min(b, start + step)), *where[axis + 1 :])
        yield from blocks(piece, most)
