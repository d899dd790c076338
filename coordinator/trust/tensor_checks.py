"""Check the tensors of updates, in whichever process receives them. Imports no PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from coordinator.round.tensor_check import Examined, TensorCheck
from coordinator.trust.norm_bounds import measure_change
from federated.engine.sums_of_squares import sum_squares_each
from federated.errors import Refused
from federated.task import Update
from federated.wire import tensors
from federated.wire.codecs.codec import Tensors

__all__ = ["VAST", "check_variances", "check_weights", "examine"]

OUTSIZE = 1e3  # times the norm that was sent (plus one per entry, for tensors that start at zero)
# largest mean, deviation, variance or tensor norm: the square root of float32's range, so that
# weighted sums are finite
VAST = 1e18


def examine(update: Update, check: TensorCheck, received: Tensors) -> Examined:
    """Check the tensors of a trained update, and measure how far it moved. Raises Refused.

    received: the weights that the agent received, by local name.
    """
    check_weights(update, check.shapes, check.norms)
    changes = measure_change(update, received) if check.measured else {}
    return Examined(replace(update, tensors={}), changes)


def check_weights(
    update: Update, shapes: Mapping[str, tuple[int, ...]], sent: Mapping[str, float]
) -> None:
    """Check that an update has weights of these shapes and a plausible size. Raises Refused.

    sent: the L2 norm of each tensor that the device received. It gives a bound that is known before
        anyone answers, and that no honest training reaches.
    """
    tensors.check_layout(update.tensors, shapes)
    for name, square in sum_squares_each(update.tensors).items():
        value, norm = update.tensors[name], math.sqrt(square)
        bound = min(OUTSIZE * (sent.get(name, 0.0) + math.sqrt(value.size)), VAST)
        if not math.isfinite(norm):
            raise Refused(tensors.describe_infinite(name, value))
        if norm > bound:
            raise Refused(
                f"tensor {name}: expected a norm of at most {bound:.3g}, found {norm:.3g}"
            )
    check_variances(update)


def check_variances(update: Update) -> None:
    """Check that no variance of a norm is negative: batch norm takes its root."""
    for name, value in update.tensors.items():
        if name.endswith("running_var") and (value < 0).any():
            raise Refused(
                f"{update.work} of {update.agent}: expected variances of at least 0, found "
                f"{value.min():.3g} in {name}"
            )
