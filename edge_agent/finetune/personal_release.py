"""A release of a device's own: one submodel, adapted to the device's data, in a folder beside which
nothing else is touched.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import nn

from export import bundle, modelcard
from export.bundle import Bundle
from export.verify import Array
from federated.data.dataset import Dataset
from federated.errors import ExportError, StoreError, UsageError
from federated.training.objective import pose
from federated.wire import tensors
from models.submodel import Network, Submodel

__all__ = ["check_target", "write"]

# of this device's own at most that the adapted graphs are compared on, and as many to calibrate
# int8
EXAMPLES = 1024
PERSONAL = "personal"  # the fact by which a release tells that it is one


def check_target(out: Path, folder: Path) -> None:
    """Raises UsageError where something else than a release of this device's own would be lost.
    folder: of the release that was adapted.
    """
    if out.resolve() == folder.resolve():
        raise UsageError(
            f"--out {out}: expected another folder than the release's, which stays as it is"
        )
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not _ours(out))):
        raise UsageError(f"--out {out}: expected a new folder, or one that this command wrote")


def _ours(out: Path) -> bool:
    """Whether nothing in a folder would be lost with it but what this command wrote."""
    names = {path.name for path in out.iterdir()}
    if bundle.MANIFEST not in names:
        return len(names) == 1 and all(name.endswith(".tensors") for name in names)
    try:
        made = bundle.manifest(out)
    except ExportError:
        return False
    return PERSONAL in made.about and names <= {
        bundle.MANIFEST,
        modelcard.NAME,
        *(file.name for file in bundle.files(made)),
    }


def write(
    out: Path,
    made: Bundle,
    submodel: Submodel,
    net: nn.Module,
    data: Dataset,
    hide: float,
    *,
    whole: bool,
) -> Path:
    """Writes a release of this device's own beside `out`, and puts it there when all of it is
    whole; where its weights lie. Raises StoreError.
    """
    final = out.resolve()
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{final.name}.", dir=final.parent) as aside:
            part, old = Path(aside, "new"), Path(aside, "old")
            part.mkdir()
            _fill(part, made, submodel, net, data, hide, whole=whole)
            if final.exists():
                final.replace(old)
            try:
                part.replace(final)
            except OSError:
                if old.exists():
                    old.replace(final)
                raise
    except OSError as error:
        raise StoreError(f"{out}: cannot be written: {error.strerror or error}") from error
    return out / f"{submodel.name}.tensors"


def _fill(
    part: Path,
    made: Bundle,
    submodel: Submodel,
    net: nn.Module,
    data: Dataset,
    hide: float,
    *,
    whole: bool,
) -> None:
    """The files of a release of this device's own, or its weights alone."""
    if whole:
        x, truth = _asked(submodel.network, data.x_held[:EXAMPLES], data.y_held[:EXAMPLES], hide)
        few = x if len(x) > 1 else np.concatenate([x, x])
        about = {PERSONAL: "adapted on a device to its own data", "data": data.name}
        owns = _asked(submodel.network, data.x[:EXAMPLES], data.y[:EXAMPLES], hide)[0]
        truth = truth if len(x) > 1 else np.concatenate([truth, truth])
        bundle.write(
            part,
            made.run,
            made.round,
            {submodel: net},
            few,
            truth,
            calibration=owns,
            classes=made.classes,
            about=about,
        )
    else:
        state = {
            name: value for name, value in net.state_dict().items() if value.is_floating_point()
        }
        (part / f"{submodel.name}.tensors").write_bytes(
            tensors.encode(msgspec.to_builtins(submodel), state)
        )


def _asked(network: Network, x: Array, y: Array, hide: float) -> tuple[Array, Array]:
    """Raw examples as the network is asked, with what it should answer, in raw units."""
    if network.objective != "masked":
        return x, y
    shown, truth = pose(
        network, hide, torch.from_numpy(x), torch.from_numpy(y), torch.Generator().manual_seed(0)
    )
    return shown.numpy(), truth.numpy()
