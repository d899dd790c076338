"""Store what a device keeps between rounds of a run (a variate, its last network, its own layers)
on its own disk, without PyTorch.

Each round of training writes one file. A task names the round of the last update that the
coordinator accepted from this device, and training starts from that round's file. An update that
was lost, rejected or late therefore leaves a file that no task names: a repeated round starts from
the same memory as the first attempt, even if either side was restarted in between.

An accepted update may still wait to be folded when the next task names its round. If its file is
then lost, the coordinator asks for it again, with the round that it named at first. So the memory
from before that update stays too, and a repeated round keeps the memory of the one that followed.

Names that start with `c/` belong to tensors of the model (c/NAME, or c/KIND/NAME for the state of
the optimiser). Their file holds the union of all parts of the tensor that the device ever trained:
a round replaces the part that its submodel covers and leaves all other entries and layers
unchanged; new entries start at 0. The union can be larger than the submodel, so it is never loaded
as a whole, nor memory-mapped (mapped pages count as the process's memory): reads and copies go
through blocks of rows.

Names that start with `residual/` belong to error feedback (`federated.device.error_feedback`). They
are as large as the update, so they are not read before the training has ended, and are read,
computed and written one by one.

A file ends with MARK and the sha256 of all bytes before it. A damaged file counts as missing.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from federated.errors import Malformed
from federated.runtime import atomic_files
from federated.task import Recipe
from federated.wire import tensors
from models.submodel import Submodel

__all__ = [
    "FOLDER",
    "PREFIX",
    "RESIDUAL",
    "ComputedTensor",
    "Layer",
    "StoredTensor",
    "find_file",
    "list_state_names",
    "locate_residual",
    "prune",
    "prune_before",
    "read",
    "read_tensor",
    "variate_name",
    "write",
]

log = logging.getLogger(__name__)

Array = NDArray[Any]

FOLDER = "memory"  # beside a device's spooled updates
PREFIX = "c/"  # of a tensor stored as the union of its corners
RESIDUAL = "residual/"  # of what a codec left out of the round's update
SUFFIX = ".kept"
MARK = b"sha256\0\0"  # before the digest at the end of a file
BLOCK = 1 << 20  # bytes of a tensor copied at once; at least one row


def variate_name(recipe: Recipe, submodel: Submodel, name: str) -> str:
    """Return the name of a parameter's c_i in the device's memory."""
    return f"{PREFIX}{name}@{submodel.plain.name}" if recipe.apart else PREFIX + name


def list_state_names(recipe: Recipe, name: str) -> dict[str, str]:
    """Return the names of a parameter's optimiser state in the device's memory, by PyTorch's names
    of its tensors.
    """
    kinds: tuple[str, ...] = ("momentum_buffer",) if recipe.momentum else ()
    if recipe.optimiser != "sgd":
        kinds = "exp_avg", "exp_avg_sq", "step"
    return {kind: f"{PREFIX}{kind}/{name}" for kind in kinds}


def read(
    folder: Path, since: int, corners: Mapping[str, tuple[int, ...]] = MappingProxyType({})
) -> dict[str, Array]:
    """Return the memory that round `since` left, without residuals; nothing for 0, or if this disk
    has no file of it.

    corners: shape to read of each `c/` tensor, with zeros where the union ends before it; other
        `c/` tensors are not read
    OSError: the disk fails
    """
    known = locate_tensors(folder, since)
    wanted = {
        name: one.shape for name, one in known.items() if not name.startswith((PREFIX, RESIDUAL))
    }
    wanted |= {
        name: shape
        for name, shape in corners.items()
        if name in known and known[name].ndim == len(shape)
    }
    return {name: read_tensor(known[name], shape) for name, shape in wanted.items()}


def locate_residual(
    folder: Path, since: int, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, StoredTensor]:
    """Return those of these tensors that round `since` left with the same shape. OSError: the disk
    fails.
    """
    known = locate_tensors(folder, since)
    return {
        name: known[name]
        for name, shape in shapes.items()
        if name in known and known[name].shape == shape and known[name].dtype == np.float32
    }


def read_tensor(stored: StoredTensor, shape: tuple[int, ...]) -> Array:
    """Return the leading corner of this shape, with zeros where the tensor ends before it."""
    found: Array = np.zeros(shape, stored.dtype)
    for where, block in read_blocks(shape, [stored]):
        np.atleast_1d(found)[where] = block
    return found


def write(folder: Path, round: int, values: Mapping[str, Layer], *, since: int) -> None:
    """Write the memory of a round, with the rest of the unions that it started from. Delete the
    files that no task can name any more. OSError: the disk fails.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    prune_before(folder, round, since=since)
    layers: dict[str, list[Layer]] = {
        name: [value]
        for name, value in locate_tensors(folder, since).items()
        if name.startswith(PREFIX)
    }
    for name, value in values.items():
        same = [
            old
            for old in layers.get(name, ())
            if old.ndim == value.ndim and old.dtype == value.dtype
        ]
        layers[name] = [*same, value]  # later layers overwrite earlier ones
    atomic_files.write_pieces(find_file(folder, round), add_digest(encode_layers(layers)))


def find_file(folder: Path, round: int) -> Path:
    """Return the path of a round's file."""
    return folder / f"{round}{SUFFIX}"


def prune_before(folder: Path, round: int, *, since: int) -> None:
    """Delete the files that no task can name once a round is written: all except its own, that of
    `since` and the one before it, and, if the round was trained before, the one that followed. So
    at most four files exist, and three unless rounds are repeated. OSError: the disk fails.
    """
    written = [
        int(path.stem) for path in folder.glob(f"*{SUFFIX}") if re.fullmatch(r"[0-9]+", path.stem)
    ]
    before = max((one for one in written if one < since), default=since)
    after = max(written) if round in written else round
    prune(folder, before, since, round, after)


def prune(folder: Path, *rounds: int) -> None:
    """Delete the files of all other rounds."""
    known = {find_file(folder, round).name for round in rounds}
    for path in folder.glob("*"):
        if path.name not in known:
            path.unlink()


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    path: the file
    dtype, shape: of the tensor
    offset: of its first value, in bytes
    """

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def rows(self, start: int, stop: int) -> Array:
        """Return rows of axis 0. OSError: the disk fails."""
        row = math.prod(self.shape[1:])
        found = np.fromfile(
            self.path,
            self.dtype,
            (stop - start) * row,
            offset=self.offset + start * row * self.dtype.itemsize,
        )
        return found.reshape(stop - start, *self.shape[1:])


@dataclass(frozen=True)
class ComputedTensor:
    """A float32 tensor that is computed when it is written, so that few are in memory at a time.

    shape: of the tensor
    compute: returns it
    """

    shape: tuple[int, ...]
    compute: Callable[[], Array]
    dtype = np.dtype(np.float32)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)


Layer = StoredTensor | ComputedTensor | Array


def locate_tensors(folder: Path, since: int) -> dict[str, StoredTensor]:
    """Return the tensors of a round's file; nothing if it is damaged, which would otherwise fail
    every later task. OSError: the disk fails.
    """
    path = find_file(folder, since)
    if not since or not path.exists():
        return {}
    try:
        with path.open("rb") as file:
            found = tensors.locate(file, check_digest(file))
        if wrong := [
            name
            for name, (dtype, shape, _) in found.items()
            if name.startswith(PREFIX) and (dtype != "float32" or 0 in shape)
        ]:
            raise Malformed(f"{wrong[0]}: expected float32 and no axis of size 0")
    except Malformed as error:
        log.warning("%s is damaged; continuing without its memory: %s", path, error)
        return {}
    return {
        name: StoredTensor(path, np.dtype(dtype).newbyteorder("<"), shape, offset)
        for name, (dtype, shape, offset) in found.items()
    }


def add_digest(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces, then their digest."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        yield piece
    yield MARK + digest.digest()


def check_digest(file: BinaryIO) -> int:
    """Return the number of bytes after the blob in a file: those of its digest, 0 if an earlier
    version wrote none. Raises Malformed if the digest differs, OSError.
    """
    after = len(MARK) + hashlib.sha256().digest_size
    rest, digest = max(0, os.fstat(file.fileno()).st_size - after), hashlib.sha256()
    file.seek(rest)
    found = file.read()
    file.seek(0)
    if not found.startswith(MARK):
        log.info("%s was written by a version without digests", file.name)
        return 0
    while rest > 0 and (piece := file.read(min(BLOCK, rest))):
        digest.update(piece)
        rest -= len(piece)
    if found != MARK + digest.digest():
        raise Malformed("its digest differs")
    file.seek(0)
    return after


def encode_layers(layers: Mapping[str, Sequence[Layer]]) -> Iterator[bytes]:
    """Yield the blob (see `federated.wire.tensors`) of tensors made of corners, in pieces."""
    shapes = {
        name: tuple(max(sizes) for sizes in zip(*(one.shape for one in several), strict=True))
        for name, several in layers.items()
    }
    header, starts, _ = tensors.layout(
        {}, {name: (several[0].dtype.name, shapes[name]) for name, several in layers.items()}
    )
    yield header
    end = 0
    for name, several in layers.items():
        yield bytes(starts[name] - end)  # up to the alignment
        end = starts[name] + math.prod(shapes[name]) * several[0].dtype.itemsize
        for _, block in read_blocks(shapes[name], [*map(compute_layer, several)]):
            yield block.tobytes()


def compute_layer(layer: Layer) -> StoredTensor | Array:
    """Return a layer, computed if it is not yet."""
    return layer.compute() if isinstance(layer, ComputedTensor) else layer


def read_blocks(
    shape: tuple[int, ...], layers: Sequence[StoredTensor | Array]
) -> Iterator[tuple[slice, Array]]:
    """Yield a tensor with the layers in its leading corner, later ones over earlier ones, and 0
    elsewhere.

    It comes in pieces along axis 0, each with its index, so that only a few rows of a layer are in
    memory at once. A scalar counts as one row.
    """
    shape = shape or (1,)
    sizes = [math.prod(each[1:]) for each in (shape, *(layer.shape for layer in layers))]
    step = max(1, BLOCK // max(1, layers[0].dtype.itemsize * max(sizes)))
    for start in range(0, shape[0], step):
        stop = min(start + step, shape[0])
        out = np.zeros((stop - start, *shape[1:]), layers[0].dtype.newbyteorder("<"))
        for layer in layers:
            if (last := min(stop, (layer.shape or (1,))[0])) > start:
                rows = (
                    layer.rows(start, last)
                    if isinstance(layer, StoredTensor)
                    else np.atleast_1d(layer)[start:last]
                )
                common = tuple(slice(min(a, b)) for a, b in zip(out.shape, rows.shape, strict=True))
                out[common] = rows[common]
        yield slice(start, stop), out
