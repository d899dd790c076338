"""Give a phone a part of the handwritten digits to practise with, the same part that
`edge-agent join --data digits` gives an agent of its name.
"""

from __future__ import annotations

import re

import numpy as np

from federated.data.loading import load_device
from federated.errors import UsageError
from federated.wire import tensors

__all__ = ["encode_digits"]


def encode_digits(agent: str, shard: str | None = None) -> bytes:
    """Return an agent's part of the digits as a blob: x and x_held uint8 [n, *inputs], y and y_held
    int32 [n], and in its header their name and the number of classes.

    shard: I/N, drawn with the default seed; None: a part drawn from the agent's name.
    Raises UsageError for an invalid shard, or one of more than 99, since anybody may ask and many
    parts take long to draw; DataError for one with too few examples.
    """
    if shard is not None and not re.fullmatch(r"[0-9]{1,2}/[0-9]{1,2}", shard):
        raise UsageError("shard: expected I/N with N at most 99, such as 0/4")
    data = load_device("digits", name=agent, shard=shard)
    arrays = {
        "x": data.x,
        "y": data.y.astype(np.int32),
        "x_held": data.x_held,
        "y_held": data.y_held.astype(np.int32),
    }
    return bytes(tensors.encode({"name": data.name, "outputs": data.outputs}, arrays))
