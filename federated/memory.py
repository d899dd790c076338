"""What a device keeps between rounds of a run (a variate, its last network, layers of its own), on its own disk, without PyTorch.

One file per round that was trained. A task names the round of which the coordinator took this device's last update, and the device starts from
the file of that round. An update that was lost, refused or late leaves a file that no task names, so a repeated round starts from the same memory
as the first attempt, and neither side has to be told that the other one was killed.

A name that starts with `c/` is that of a tensor of the model, c/NAME. Its file holds the union of the corners that the device ever trained: a
round replaces the corner of its submodel, all other entries and layers stay as they were, and entries that are new start at 0. The union may be
larger than the submodel, so it never is in memory: it is read by corner, and a round's file is copied from the one before in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federated import disk
from federated.wire import tensors

__all__ = ["FOLDER", "PREFIX", "prune", "read", "write"]

Array = NDArray[Any]

FOLDER = "memory"  # beside a device's spooled updates
PREFIX = "c/"  # of a tensor that is kept as the union of its corners
SUFFIX = ".kept"
BLOCK = 1 << 20  # bytes of a tensor that are copied at once; one row at the least


def read(folder: Path, since: int, corners: Mapping[str, tuple[int, ...]] = MappingProxyType({})) -> dict[str, Array]:
    """What round `since` left; nothing where that is 0, or where this disk has no file of it.

    corners: name -> shape of what is wanted of the `c/` tensors. Each one that is known comes in that shape, with zeros where the union ends
    before it. No other `c/` tensor is read. Raises Malformed, OSError.
    """
    known = stored(folder, since)
    found = {name: np.array(value) for name, value in known.items() if not name.startswith(PREFIX)}
    for name, shape in corners.items():
        if name in known and known[name].ndim == len(shape):
            found[name] = stacked(shape, [known[name]])
    return found


def write(folder: Path, round: int, values: Mapping[str, Array], *, since: int) -> None:
    """What a round leaves, with the rest of the unions that it started from. Only the files of these two rounds stay. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    layers: dict[str, list[Array]] = {name: [value] for name, value in stored(folder, since).items() if name.startswith(PREFIX)}
    for name, value in values.items():
        same = [old for old in layers.get(name, ()) if old.ndim == value.ndim and old.dtype == value.dtype]
        layers[name] = [*same, value]  # the later one counts where both have an entry
    disk.write_pieces(folder / f"{round}{SUFFIX}", encoded(layers))
    prune(folder, since, round)


def prune(folder: Path, *rounds: int) -> None:
    """Forgets all but what these rounds left."""
    known = {f"{round}{SUFFIX}" for round in rounds}
    for path in folder.glob("*"):
        if path.name not in known:
            path.unlink()


def stored(folder: Path, since: int) -> dict[str, Array]:
    """The tensors of a round's file, as views of the mapped file."""
    path = folder / f"{since}{SUFFIX}"
    return tensors.decode(disk.view(path))[1] if since and path.exists() else {}


def encoded(layers: Mapping[str, Sequence[Array]]) -> Iterator[bytes]:
    """The blob (see `federated.wire.tensors`) of tensors that consist of corners, in pieces."""
    shapes = {name: tuple(max(sizes) for sizes in zip(*(one.shape for one in several), strict=True)) for name, several in layers.items()}
    header, starts, _ = tensors.layout({}, {name: (several[0].dtype.name, shapes[name]) for name, several in layers.items()})
    yield header
    end = 0
    for name, several in layers.items():
        yield bytes(starts[name] - end)  # up to the alignment
        end = starts[name] + math.prod(shapes[name]) * several[0].itemsize
        yield from blocks(shapes[name], several)


def blocks(shape: tuple[int, ...], layers: Sequence[Array]) -> Iterator[bytes]:
    """The values of `stacked` in pieces along axis 0, so that only a few rows of the union are in memory at once."""
    if not shape:
        yield stacked(shape, layers).tobytes()
        return
    step = max(1, BLOCK // max(1, layers[0].itemsize * math.prod(shape[1:])))
    for start in range(0, shape[0], step):
        stop = min(start + step, shape[0])
        yield stacked((stop - start, *shape[1:]), [layer[start:stop] for layer in layers]).tobytes()


def stacked(shape: tuple[int, ...], layers: Sequence[Array]) -> Array:
    """A tensor of a shape whose leading corner is that of the layers, one over the other, and 0 where there is none of them."""
    out = np.zeros(shape, layers[0].dtype.newbyteorder("<"))
    for layer in layers:
        common = tuple(slice(min(a, b)) for a, b in zip(shape, layer.shape, strict=True))
        out[common] = layer[common]
    return out
