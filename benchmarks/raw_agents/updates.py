"""Make the updates of raw agents, which do not train: the received weights plus a little noise.

The noise depends only on weights, agent and round, so the resulting model can be computed from the
list of folded updates.
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

__all__ = ["CARD", "Array", "encode", "learn", "make_update"]

CARD = Card("digits", (1, 8, 8), "uint8", 10, 100, 20, (5.0,), (6.0,))
SCALE = 1e-3  # of the noise; weights are about 0.1

Array = NDArray[Any]


def learn(weights: Mapping[str, Array], agent: str, round: int) -> dict[str, Array]:
    """Return an agent's weights after a round: the given ones plus reproducible float32 noise of
    SCALE.
    """
    rng = np.random.default_rng([zlib.crc32(agent.encode()), round])
    return {
        name: w + np.float32(SCALE) * rng.standard_normal(w.shape, np.float32)
        for name, w in weights.items()
    }


def make_update(
    run: str, round: int, attempt: int, agent: str, submodel: Submodel, version: str
) -> Update:
    """Return an update without tensors; its samples, steps and loss depend only on agent
    and round.
    """
    number = zlib.crc32(f"{agent} {round}".encode())
    notes = {"loss": 1.0 + number % 100 / 100, "labels": list(range(CARD.outputs))}
    return Update(
        run, round, attempt, agent, "train", submodel, version, 10 + number % 90, 1, {}, notes
    )


def encode(update: Update, values: Mapping[str, Array]) -> bytes:
    """Return an update as it is sent."""
    return bytes(tensors.encode(msgspec.to_builtins(update), values))
