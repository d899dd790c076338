"""The record of a codec, which encodes the tensors of trained updates.

Weights for devices, batch norm statistics and scores are sent without a codec: an error in weights
would be in every update of the round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

__all__ = ["Codec", "Tensors"]

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Codec:
    """A codec. Both ends need it; the run's card names it.

    name: the value of `wire.codec`.
    help: its effect and its loss, one line for the table in docs/operations.md.
    encode: converts float32 tensors to arrays of any shape with a dtype of
        `federated.wire.tensors.DTYPES`; for another one, return a view as uint8. Raises Refused for
        values that it cannot represent; the task then fails with this reason.
    decode: converts received arrays to float32 tensors with the names and shapes that `encode`
        got. It must not trust them, and raises Malformed for invalid ones before it allocates
        anything.
    size: returns the encoded bytes of a number of float32 values, without names and shapes; at most
        four per value.
    """

    name: str
    help: str
    encode: Callable[[Tensors], Tensors]
    decode: Callable[[Tensors], Tensors]
    size: Callable[[int], int]
