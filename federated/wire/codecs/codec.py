"""What a codec is: a frozen record.

A codec applies to the updates of a training. Weights on their way to devices, batch norm statistics
and scores are sent as they are: an error in weights would be in every update of the round.
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

    name: as `wire.codec` takes it.
    help: what it does and what it loses, in one line of the table in docs/operations.md.
    encode: from float32 tensors to the arrays that are sent, of dtypes of `federated.wire.tensors`.
    Raises Refused for values that it cannot represent; the task then fails with this reason.
    decode: from the arrays that came to float32 tensors. They are another machine's claims: it
    raises Malformed for what it did not make, before it allocates anything.
    size: bytes that so many float32 values take when they are sent, without names and shapes; at
    most four per value.
    """

    name: str
    help: str
    encode: Callable[[Tensors], Tensors]
    decode: Callable[[Tensors], Tensors]
    size: Callable[[int], int]
