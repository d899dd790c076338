"""Write a personal release: a submodel that was adapted to a device's data, in its own folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import nn

from export import modelcard, release_reader, release_writer
from export.onnx_session import Array
from export.release_reader import Bundle
from export.release_writer import Contents
from federated.data.dataset import Dataset
from federated.errors import ConfigError, ExportError, UsageError, explain_os_errors
from federated.runtime import atomic_files
from federated.training.objective import prepare_batch
from federated.wire import tensors
from models.submodel import Network, Submodel

__all__ = ["check_target", "locate_weights", "write_release", "write_weights"]

# most held-out examples to check the adapted graphs with, and most training examples to calibrate
# int8 with
EXAMPLES = 1024
PERSONAL = "personal"  # the fact that marks a personal release


def check_target(out: Path, folder: Path) -> None:
    """Raise UsageError if writing to `out` would replace anything but a personal release. folder:
    the release to adapt.
    """
    if out.resolve() == folder.resolve():
        raise UsageError(f"--out {out}: expected another folder than that of the release")
    if out.exists() and not (out.is_dir() and (not any(out.iterdir()) or _is_personal(out))):
        raise UsageError(f"--out {out}: expected a new folder, or one that this command wrote")


def _is_personal(out: Path) -> bool:
    """Return True if a folder contains only what this command writes."""
    names = {path.name for path in out.iterdir()}
    if release_reader.MANIFEST not in names:
        return len(names) == 1 and all(name.endswith(".tensors") for name in names)
    try:
        release = release_reader.read_manifest(out)
    except ExportError:
        return False
    return PERSONAL in release.about and names <= {
        release_reader.MANIFEST,
        modelcard.NAME,
        *(file.name for file in release_reader.list_files(release)),
    }


def write_release(
    out: Path, origin: Bundle, submodel: Submodel, net: nn.Module, data: Dataset, hide: float
) -> None:
    """Write a release with the adapted network. origin: the adapted release; hide: fraction of
    the tokens to hide. Raises ExportError, StoreError.
    """
    x, truth = _make_examples(
        submodel.network, data.x_held[:EXAMPLES], data.y_held[:EXAMPLES], hide
    )
    if len(x) == 1:  # the exporter needs at least two
        x, truth = np.concatenate([x, x]), np.concatenate([truth, truth])
    contents = Contents(
        origin.run,
        origin.round,
        {submodel: net},
        x,
        truth,
        calibration=_make_examples(submodel.network, data.x[:EXAMPLES], data.y[:EXAMPLES], hide)[0],
        classes=origin.classes,
        about={PERSONAL: "adapted on a device to its own data", "data": data.name},
    )
    with _replace_folder(out) as folder:
        release_writer.write(folder, contents)


def write_weights(out: Path, submodel: Submodel, net: nn.Module) -> None:
    """Write only the weights of the adapted network, without the exporter. Raises StoreError."""
    state = {name: value for name, value in net.state_dict().items() if value.is_floating_point()}
    with _replace_folder(out) as folder:
        locate_weights(folder, submodel).write_bytes(
            tensors.encode(msgspec.to_builtins(submodel), state)
        )


def locate_weights(out: Path, submodel: Submodel) -> Path:
    """Return the path of a submodel's weights."""
    return out / f"{submodel.name}.tensors"


@contextmanager
def _replace_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder, and replace `out` with it when complete. Raises ConfigError."""
    final = out.resolve()
    with explain_os_errors(
        ConfigError, f"cannot write to {out}", remedy="choose another folder with --out"
    ):
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{final.name}.", dir=final.parent) as aside:
            new = Path(aside, "new")
            new.mkdir()
            yield new
            atomic_files.replace_folder(new, final)


def _make_examples(network: Network, x: Array, y: Array, hide: float) -> tuple[Array, Array]:
    """Return the inputs of the network and the expected answers, in raw units; a masked network
    gets texts with hidden tokens.
    """
    if network.objective != "masked":
        return x, y
    shown, truth = prepare_batch(
        network, hide, torch.from_numpy(x), torch.from_numpy(y), torch.Generator().manual_seed(0)
    )
    return shown.numpy(), truth.numpy()
