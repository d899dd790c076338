"""Write a submodel's tensors back to their homes, as the inverse of extraction."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from models.slicing import Plan, as_slices


def embed(
    tensors: Mapping[str, Tensor], plan: Plan, local: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return a copy of `tensors` with the submodel's tensors written to their homes: the inverse of
    `extract`.
    """
    out = dict(tensors)
    fresh: set[str] = set()
    for r in plan.rows:
        if r.local not in local:
            continue
        if r.home not in fresh:
            old = out.get(r.home)
            out[r.home] = (
                torch.zeros(r.shape, dtype=local[r.local].dtype) if old is None else old.clone()
            )
            fresh.add(r.home)
        out[r.home][as_slices(r.there)] = local[r.local][as_slices(r.here)]
    return out
