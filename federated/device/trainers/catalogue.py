"""Find a trainer by name. It is imported when it is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from federated.device.trainers.pytorch import open_pytorch
from federated.runtime.extension_errors import check_declares, find, report_failure
from models.extension_lookup import ExtensionPoint

if TYPE_CHECKING:  # settings import this module, and need no numpy
    from federated.device.trainers.trainer import Trainer, TrainerOpener

__all__ = ["DEFAULT", "TRAINERS", "open_trainer"]

POINT = ExtensionPoint("trainer", "espalier.trainers")
DEFAULT = "pytorch"


TRAINERS: Mapping[str, TrainerOpener] = {
    "pytorch": open_pytorch,
}


def open_trainer(name: str, device: str = "cpu") -> Trainer:
    """Return the trainer that the owner of this machine named: a built-in one, one of an installed
    package (`espalier.trainers`), or `module:function`.

    Raises Unknown with the nearest name; ConfigError if it cannot be imported, cannot use the
    device, or is no trainer; MissingExtra.
    """
    make = find(POINT, name, TRAINERS)
    if name in TRAINERS:
        return make(device)
    from federated.device.trainers.trainer import Trainer  # see above

    with report_failure(POINT.noun, name):
        made = make(device)
        check_declares(POINT.noun, name, made, Trainer)  # a property can raise anything, too
    return made
