"""Make the updates of raw agents, which do not train: the received weights plus a little noise.

The noise depends only on weights, agent and round, so the resulting model can be computed from the
list of folded updates.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cache
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
NUMBERS = 1 << 20  # of noise, which agents use from different places on

Array = NDArray[Any]


def learn(weights: Mapping[str, Array], agent: str, round: int) -> dict[str, Array]:
    """Return an agent's weights after a round: the given ones plus reproducible float32 noise of
    SCALE.
    """
    noise, learned = draw_noise(), dict[str, Array]()
    start = zlib.crc32(f"{agent} {round}".encode())
    for name, w in weights.items():
        first = start % NUMBERS
        learned[name] = w + np.resize(noise[first : first + min(w.size, NUMBERS)], w.shape)
        start += w.size
    return learned


@cache
def draw_noise() -> NDArray[np.float32]:
    """Return the noise twice, so that NUMBERS follow each of the first ones. Drawing it for each
    agent would take longer than all else that an agent does.
    """
    noise = np.random.default_rng(0).standard_normal(NUMBERS, np.float32)
    return np.tile(np.float32(SCALE) * noise, 2)


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
    return b"".join(tensors.pieces(msgspec.to_builtins(update), values))
