"""Open the PyTorch trainer. PyTorch is imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from federated.errors import require_extra
from federated.runtime.torch_import import pause_collection

if TYPE_CHECKING:  # settings import this module, and need no numpy
    from federated.device.trainers.trainer import Trainer

__all__ = ["open_pytorch"]


def open_pytorch(device: str) -> Trainer:
    """Return the PyTorch trainer. Raises MissingExtra, ConfigError."""
    with require_extra("trainer pytorch", "train"), pause_collection():
        from federated.device.trainers.pytorch_trainer import PyTorchTrainer
    return PyTorchTrainer(device)
