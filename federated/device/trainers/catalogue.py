"""Find a trainer by name. It is imported when it is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from federated.device.trainers.onnx import open_onnx
from federated.device.trainers.pytorch import open_pytorch
from federated.errors import MissingExtra
from federated.runtime.extension_errors import check_declares, find, report_failure
from models.extension_lookup import ExtensionPoint

if TYPE_CHECKING:  # settings import this module, and need no numpy
    from federated.device.trainers.trainer import Trainer, TrainerOpener

__all__ = ["AUTO", "DEFAULT", "TRAINERS", "open_trainer"]

POINT = ExtensionPoint("trainer", "espalier.trainers")
DEFAULT = "pytorch"
AUTO = "auto"  # the default, or without PyTorch the trainer of graphs

TRAINERS: Mapping[str, TrainerOpener] = {
    "onnx": open_onnx,
    "pytorch": open_pytorch,
}


def open_trainer(name: str, device: str = "cpu") -> Trainer:
    """Return the trainer that the owner of this machine named: a built-in one, `auto`, one of an
    installed package (`espalier.trainers`), or `module:function`.

    Raises Unknown with the nearest name; ConfigError if it cannot be imported, cannot use the
    device, or is not a trainer; MissingExtra.
    """
    if name == AUTO:
        try:
            return open_pytorch(device)
        except MissingExtra:
            return open_onnx(device)
    make = find(POINT, name, TRAINERS)
    if name in TRAINERS:
        return make(device)
    from federated.device.trainers.trainer import Trainer  # see above

    with report_failure(POINT.noun, name):
        made = make(device)
        check_declares(POINT.noun, name, made, Trainer)  # a property can raise anything, too
    return made
