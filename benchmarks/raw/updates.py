"""What a raw agent sends: the received weights and a little noise, a function of (weights, agent,
round) alone.

So whoever knows which updates were folded can compute the model that must come of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from federated.task import Card, Update
from federated.wire import tensors
from models.submodel import Submodel

__all__ = ["CARD", "Array", "encoded", "learned", "unsent"]

CARD = Card("digits", (1, 8, 8), "uint8", 10, 100, 20, (5.0,), (6.0,))
SCALE = 1e-3  # of the noise, beside weights of about 0.1

Array = NDArray[Any]


def learned(weights: Mapping[str, Array], agent: str, round: int) -> dict[str, Array]:
    """What an agent makes of its weights in a round: float32 noise of SCALE on top, repeatable to
    the bit.
    """
    rng = np.random.default_rng([zlib.crc32(agent.encode()), round])
    return {
        name: w + np.float32(SCALE) * rng.standard_normal(w.shape, np.float32)
        for name, w in weights.items()
    }


def unsent(
    run: str, round: int, attempt: int, agent: str, submodel: Submodel, version: str
) -> Update:
    """What an agent says beside its tensors: samples, steps and loss of its own, the same whenever
    it is asked.
    """
    number = zlib.crc32(f"{agent} {round}".encode())
    notes = {"loss": 1.0 + number % 100 / 100, "labels": list(range(CARD.outputs))}
    return Update(
        run, round, attempt, agent, "train", submodel, version, 10 + number % 90, 1, {}, notes
    )


def encoded(update: Update, values: Mapping[str, Array]) -> bytes:
    """An update as it travels."""
    return bytes(tensors.encode(msgspec.to_builtins(update), values))
