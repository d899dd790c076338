"""A release of a device's own: one submodel, adapted to the device's data, in a folder beside which
nothing else is touched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import nn

from export import bundle, bundle_writer, modelcard
from export.bundle import Bundle
from export.bundle_writer import Contents
from export.verify import Array
from federated.data.dataset import Dataset
from federated.errors import ExportError, StoreError, UsageError
from federated.training.objective import pose
from federated.wire import tensors
from models.submodel import Network, Submodel

__all__ = ["check_target", "weights_path", "write_release", "write_weights"]

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


def write_release(
    out: Path, origin: Bundle, submodel: Submodel, net: nn.Module, data: Dataset, hide: float
) -> None:
    """Write a release with the adapted network. origin: the release it was adapted from; hide:
    share of the tokens to hide. Raises ExportError, StoreError.
    """
    x, truth = _asked(submodel.network, data.x_held[:EXAMPLES], data.y_held[:EXAMPLES], hide)
    if len(x) == 1:  # the exporter needs two
        x, truth = np.concatenate([x, x]), np.concatenate([truth, truth])
    contents = Contents(
        origin.run,
        origin.round,
        {submodel: net},
        x,
        truth,
        calibration=_asked(submodel.network, data.x[:EXAMPLES], data.y[:EXAMPLES], hide)[0],
        classes=origin.classes,
        about={PERSONAL: "adapted on a device to its own data", "data": data.name},
    )
    with _replacing(out) as folder:
        bundle_writer.write(folder, contents)


def write_weights(out: Path, submodel: Submodel, net: nn.Module) -> None:
    """Write the weights of the adapted network alone, where the exporter is not installed. Raises
    StoreError.
    """
    state = {name: value for name, value in net.state_dict().items() if value.is_floating_point()}
    with _replacing(out) as folder:
        weights_path(folder, submodel).write_bytes(
            tensors.encode(msgspec.to_builtins(submodel), state)
        )


def weights_path(out: Path, submodel: Submodel) -> Path:
    """The file of a submodel's weights."""
    return out / f"{submodel.name}.tensors"


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """Give a new folder beside `out`, and put it in the place of `out` when it is complete. Raises
    StoreError.
    """
    final = out.resolve()
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{final.name}.", dir=final.parent) as aside:
            new, old = Path(aside, "new"), Path(aside, "old")
            new.mkdir()
            yield new
            if final.exists():
                final.replace(old)
            try:
                new.replace(final)
            except OSError:
                if old.exists():
                    old.replace(final)
                raise
    except OSError as error:
        raise StoreError(f"{out}: cannot be written: {error.strerror or error}") from error


def _asked(network: Network, x: Array, y: Array, hide: float) -> tuple[Array, Array]:
    """Raw examples as the network is asked, with what it should answer, in raw units."""
    if network.objective != "masked":
        return x, y
    shown, truth = pose(
        network, hide, torch.from_numpy(x), torch.from_numpy(y), torch.Generator().manual_seed(0)
    )
    return shown.numpy(), truth.numpy()
