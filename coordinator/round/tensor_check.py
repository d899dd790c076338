"""What the tensors of a trained update are checked against, and what was found in them."""

from __future__ import annotations

from msgspec import Struct

from federated.task import Update

__all__ = ["Examined", "TensorCheck"]


class TensorCheck(Struct, frozen=True):
    """How to decode and check the tensors of the updates of a submodel.

    codec: name of the updates' codec.
    limit: most bytes of an update, decompressed.
    shapes: of the tensors, by local name.
    norms: L2 norm of each tensor that the agent received, by local name, before it was encoded.
    measured: whether to measure how far the update moved from those tensors.
    weights: file of those tensors; empty: this process has them.
    weights_codec: name of the codec of that file.
    """

    codec: str
    limit: int
    shapes: dict[str, tuple[int, ...]]
    norms: dict[str, float]
    measured: bool
    weights: str = ""
    weights_codec: str = "raw"


class Examined(Struct, frozen=True):
    """An update whose tensors passed their checks.

    header: the update without its tensors.
    changes: L2 norm of each kind of change, if it was measured.
    """

    header: Update
    changes: dict[str, float]
