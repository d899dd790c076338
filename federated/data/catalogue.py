"""Where data comes from, and the two questions asked of it: what a coordinator holds (`central`), what a device holds (`device`).

A data set is named (a key of DATASETS), or a path to an `.npz` file, or `module:function`.

An `.npz` file holds `x` [n, ...] and `y` [n], and may hold `x_test` and `y_test` (or `x_held` and `y_held`) and `classes` (a number).
A function takes nothing and gives (x, y), (x, y, x_held, y_held) or a Dataset. Images are channel-first, [n, channels, height, width];
[n, height, width] becomes one channel. uint8 and float32 are kept, other numbers become float32. Without `classes`, there are as many
as the largest label plus 1: a device that lacks the last class must say so.
"""

from __future__ import annotations

import importlib
import importlib.resources
import os
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from federated.data import vision
from federated.data.dataset import Array, Dataset, Indices, Labels, hold_out
from federated.data.partitions import Shard, drawn, generator
from federated.errors import DataError, Unknown

__all__ = ["DATASETS", "HELD", "central", "data_root", "device", "load", "part"]

HELD = 0.2  # of the examples, held out where the data comes without a test part


def digits(root: Path) -> Dataset:
    """1797 handwritten digits, 8x8, values 0 to 16, shipped with the package, so that a first run needs no network.

    Alpaydin and Kaynak 1998, UCI Machine Learning Repository, doi 10.24432/C50P49, CC BY 4.0; see DIGITS.md beside it.
    """
    with importlib.resources.files("federated.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        return _dataset("digits", arrays["x"], arrays["y"])


DATASETS: dict[str, Callable[[Path], Dataset]] = {
    "digits": digits,
    "fashion-mnist": vision.fashion_mnist,
    "mnist": vision.mnist,
}


def data_root() -> Path:
    """Where published data sets are kept: $ESPALIER_DATA, else ~/.cache/espalier."""
    return Path(os.environ.get("ESPALIER_DATA") or Path.home() / ".cache" / "espalier")


def load(spec: str, root: Path | str | None = None) -> Dataset:
    """All of a data set as it was published: its test part, if it has one, is held out.

    Raises Unknown for a name that is none; DataError for data that is missing, unreadable or unusable; MissingExtra.
    """
    if spec in DATASETS:
        return DATASETS[spec](Path(root) if root else data_root())
    if spec.endswith(".npz"):
        return _several(_file(Path(spec)))
    if ":" in spec:
        return _several(_function(spec))
    if "/" in spec or os.sep in spec or Path(spec).exists():
        raise DataError(f"data '{spec}': expected a file ending in .npz, or one of {', '.join(DATASETS)}, or module:function")
    raise Unknown("data set", spec, DATASETS)


def central(spec: str, root: Path | str | None = None) -> Dataset:
    """What a coordinator holds: the published test part held out, else a stratified 20 % that no agent's shard contains.

    The rest is what shards are made of: a coordinator in the field looks only at the held-out part, a simulation shares out the rest.
    """
    dataset = load(spec, root)
    if len(dataset.x_held):
        return dataset
    train, held = hold_out(dataset.y, HELD, generator("central", Path(spec).name))
    return _divided(dataset, train, held)


def device(
    spec: str,
    root: Path | str | None = None,
    *,
    name: str,
    shard: Shard | str | None = None,
    partition: str = "dirichlet:1.0",
    seed: int = 0,
    held: float = HELD,
) -> Dataset:
    """What the agent `name` holds, with a part of its own held out (stratified, at least 1 example).

    With a shard, that part of the data set: a Shard, or as a command spells it, I/N of `partition` drawn with `seed`.
    Without one, a shard drawn from the agent's name when the data set is a published one; all of it when it is the device's
    own, and then its own test part is the held-out one.
    Raises what `load` raises, and DataError for a shard of less than 2 examples.
    """
    if isinstance(shard, str):
        shard = Shard.parse(shard, partition, seed)
    if shard is not None:
        whole = central(spec, root)
        return part(whole, shard.of_labels(whole.y), name=name, held=held)
    if spec in DATASETS:
        whole = central(spec, root)
        return part(whole, drawn(whole.y, name), name=name, held=held)
    own = load(spec, root)
    return own if len(own.x_held) else part(own, np.arange(len(own.x)), name=name, held=held)


def part(whole: Dataset, indices: Indices, *, name: str, held: float = HELD) -> Dataset:
    """Some training examples of a data set as the data of the agent `name`, a share of them held out; `whole`'s held-out part stays behind.

    Raises DataError for less than 2 examples.
    """
    if len(indices) < 2:
        raise DataError(f"{whole.name}, shard of '{name}': expected at least 2 examples, found {len(indices)}")
    train, local = hold_out(whole.y[indices], held, generator("held", name))
    return _divided(whole, indices[train], indices[local])


def _divided(dataset: Dataset, train: Indices, held: Indices) -> Dataset:
    return replace(dataset, x=dataset.x[train], y=dataset.y[train], x_held=dataset.x[held], y_held=dataset.y[held])


def _several(dataset: Dataset) -> Dataset:
    """A source of one class is a mistake (a shard of one class is not)."""
    if len(dataset.labels) < 2:
        raise DataError(f"{dataset.name}: expected examples of at least 2 classes in y, found only class {dataset.labels[0]}")
    return dataset


def _file(path: Path) -> Dataset:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = dict(arrays)
    except FileNotFoundError:
        raise DataError(f"data '{path}': no such file") from None
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile) as error:
        why = "it holds pickled objects, which are not read" if "allow_pickle" in str(error) else error
        raise DataError(f"data '{path}': expected an .npz file of plain arrays: {why}") from error
    return _named(path.name, found)  # a card names its data: the folders of a person do not leave the device


def _named(name: str, arrays: Mapping[str, Any]) -> Dataset:
    missing = [key for key in ("x", "y") if key not in arrays]
    if missing:
        raise DataError(f"data '{name}': expected arrays x and y, found {', '.join(sorted(arrays)) or 'none'}")
    for x_held, y_held in (("x_held", "y_held"), ("x_test", "y_test")):
        if (x_held in arrays) != (y_held in arrays):
            raise DataError(f"data '{name}': expected {x_held} and {y_held} together, found only one")
        if x_held in arrays:
            return _dataset(name, arrays["x"], arrays["y"], arrays[x_held], arrays[y_held], arrays.get("classes"))
    return _dataset(name, arrays["x"], arrays["y"], classes=arrays.get("classes"))


def _function(spec: str) -> Dataset:
    module, _, function = spec.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a command installed by pip does not look where it was called
    try:
        found = getattr(importlib.import_module(module), function)()
    except Exception as error:
        raise DataError(f"data '{spec}': {type(error).__name__}: {error}") from error
    if isinstance(found, Dataset):
        return found
    if not isinstance(found, tuple) or len(found) not in (2, 4):
        raise DataError(f"data '{spec}': expected (x, y), (x, y, x_held, y_held) or a Dataset, found {type(found).__name__}")
    return _dataset(spec, *found)


def _dataset(name: str, x: Any, y: Any, x_held: Any = None, y_held: Any = None, classes: Any = None) -> Dataset:
    """Whatever a person gave, as the arrays that a Dataset takes; it says what is wrong with them."""
    images, labels = _examples(name, "x", x), _labels(name, "y", y)
    held = images[:0] if x_held is None else _examples(name, "x_held", x_held)
    held_labels = labels[:0] if y_held is None else _labels(name, "y_held", y_held)
    if classes is None:
        classes = max(2, *(int(part.max(initial=0)) + 1 for part in (labels, held_labels)))
    elif np.ndim(classes) or not np.issubdtype(np.asarray(classes).dtype, np.integer):
        raise DataError(f"data '{name}': expected classes as one whole number, found {np.asarray(classes).dtype} {list(np.shape(classes))}")
    return Dataset(name, images, labels, held, held_labels, int(classes))


def _examples(name: str, key: str, value: Any) -> Array:
    array = np.asarray(value)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_) or np.iscomplexobj(array):
        raise DataError(f"data '{name}': expected numbers in {key}, found {array.dtype}")
    if array.dtype != np.uint8:
        array = array.astype(np.float32, copy=False)
    return array[:, None] if array.ndim == 3 else array


def _labels(name: str, key: str, value: Any) -> Labels:
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"data '{name}': expected whole numbers in {key}, found {array.dtype}")
    return array.astype(np.int64, copy=False)
