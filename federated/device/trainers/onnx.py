"""Open the trainer that runs training graphs with ONNX Runtime, which is imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # settings import this module, and need no numpy
    from federated.device.trainers.trainer import Trainer

__all__ = ["open_onnx"]


def open_onnx(device: str) -> Trainer:
    """Return the trainer of graphs. Raises ConfigError."""
    from federated.device.trainers.onnx_trainer import OnnxTrainer

    return OnnxTrainer(device)
