"""Adam on flat dicts of tensors (Kingma and Ba, arXiv 1412.6980, Algorithm 1), whose moments a
state can keep beside what they move.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["adam"]

BETAS, EPS = (0.9, 0.999), 1e-8


def adam(
    known: Mapping[str, Tensor], gradient: Mapping[str, Tensor], prefix: str
) -> dict[str, Tensor]:
    """By name the step for each gradient, before the learning rate; and under the prefix both
    moments and the number of steps, as they are now.

    known: where moments and steps of before are found; 0 where they are not.
    """
    count = known.get(f"{prefix}steps", torch.zeros(1)) + 1
    made: dict[str, Tensor] = {f"{prefix}steps": count}
    for name, value in gradient.items():
        moments = []
        for key, beta, of in zip(
            (f"{prefix}m/{name}", f"{prefix}v/{name}"), BETAS, (value, value.square()), strict=True
        ):
            made[key] = beta * known.get(key, torch.zeros_like(value)) + (1 - beta) * of
            moments.append(made[key] / (1 - beta ** float(count)))
        made[name] = moments[0] / (moments[1].sqrt() + EPS)
    return made
