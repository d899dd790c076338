"""Where data comes from, and the two questions asked of it: what a coordinator holds (`central`),
what a device holds (`device`).

A data set is named (a key of DATASETS, or an entry point of the group `espalier.data`), or it is
the path of an `.npz` file, a `.csv` file, or a folder of pictures (or the `.zip` of one), or
`module:function`. `arrays`, `table` and `images` say what these hold.
"""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from federated.data import vision
from federated.data.arrays import call, read_npz
from federated.data.arrays import dataset as of_arrays
from federated.data.dataset import Dataset, Indices
from federated.data.images import read_folder, read_zip
from federated.data.partitions import Shard, drawn, generator
from federated.data.sensors import har
from federated.data.strata import hold_out, hold_out_last, hold_out_users, strata
from federated.data.table import is_table, read_table
from federated.data.text import wikitext_2
from federated.errors import ConfigError, DataError
from federated.runtime.plugins import find
from models.extensions import Kind, known_names

__all__ = ["DATASETS", "HELD", "central", "data_root", "device", "load", "part"]

HELD = 0.2  # of the examples, held out where the data comes without a test part


def digits(root: Path) -> Dataset:
    """1797 handwritten digits, 8x8, values 0 to 16, shipped with the package, so that a first run
    needs no network.

    Alpaydin and Kaynak 1998, UCI Machine Learning Repository, doi 10.24432/C50P49, CC BY 4.0; see
    DIGITS.md beside it.
    """
    with (
        importlib.resources.files("federated.data").joinpath("digits.npz").open("rb") as file,
        np.load(file) as arrays,
    ):
        return of_arrays("digits", {key: arrays[key] for key in ("x", "y")})


KIND = Kind("data set", "espalier.data")

DATASETS: dict[str, Callable[[Path], Dataset]] = {
    "cifar10": vision.cifar10,
    "cifar100": vision.cifar100,
    "cinic10": vision.cinic10,
    "digits": digits,
    "fashion-mnist": vision.fashion_mnist,
    "har": har,
    "mnist": vision.mnist,
    "svhn": vision.svhn,
    "wikitext-2": wikitext_2,
}


def data_root() -> Path:
    """Where published data sets are kept: $ESPALIER_DATA, else ~/.cache/espalier."""
    return Path(os.environ.get("ESPALIER_DATA") or Path.home() / ".cache" / "espalier")


def load(spec: str, root: Path | str | None = None) -> Dataset:
    """All of a data set as it was published: its test part, if it has one, is held out.

    Raises Unknown for a name that is none; DataError for data that is missing, unreadable or
    unusable; MissingExtra.
    """
    if spec in DATASETS:
        return DATASETS[spec](Path(root) if root else data_root())
    if spec in known_names(KIND, {}):
        return _foreign(spec, root)
    path = Path(spec)
    if path.is_dir():
        return _several(read_folder(path))
    if spec.endswith(".zip"):
        return _several(read_zip(path))
    if spec.endswith(".npz"):
        return _several(read_npz(path))
    if is_table(spec):
        return _several(read_table(spec))
    if ":" in spec:
        return _foreign(spec, root)
    if "/" in spec or os.sep in spec or path.exists():
        raise DataError(
            f"data '{spec}': expected a file ending in .npz or .csv, a folder of "
            "pictures or the .zip of one, that is there, "
            f"or one of {', '.join(known_names(KIND, DATASETS))}, or module:function"
        )
    return _foreign(spec, root)  # raises Unknown


def _foreign(spec: str, root: Path | str | None) -> Dataset:
    """The data of an installed package, or of `module:function`. Raises Unknown, DataError."""
    known: Mapping[str, Callable[..., Any]] = DATASETS
    try:
        function = find(KIND, spec, known)
    except ConfigError as error:
        raise DataError(str(error)) from error
    return _several(call(spec, function, Path(root) if root else data_root()))


def central(spec: str, root: Path | str | None = None) -> Dataset:
    """What a coordinator holds: the published test part held out, else 20 % that no agent's shard
    contains: of every class, or of the people.

    The rest is what shards are made of: a coordinator in the field looks only at the held-out part,
    a simulation shares out the rest.
    """
    dataset = load(spec, root)
    if len(dataset.x_held):
        return dataset
    # not its spelling: FILE.csv and FILE.csv:COLUMN are one, on the coordinator and on agents
    rng = generator("central", dataset.name)
    if dataset.users is not None and len(np.unique(dataset.users)) > 1:
        return _divided(dataset, *hold_out_users(dataset.users, HELD, rng))
    return _divided(dataset, *hold_out(strata(dataset)[0], HELD, rng))


def device(
    spec: str,
    root: Path | str | None = None,
    *,
    name: str,
    shard: Shard | str | None = None,
    partition: str = "dirichlet:1.0",
    seed: int = 0,
) -> Dataset:
    """What the agent `name` holds, with a part of its own held out (of every class, or the last
    recordings; at least 1 example).

    With a shard, that part of the data set: a Shard, or as a command spells it, I/N of `partition`
    drawn with `seed`.
    Without one, a shard drawn from the agent's name when the data set is a built-in one; all of it
    when it is the device's own (of a file, of a function, or of an installed package), and then its
    own test part is the held-out one.
    Raises what `load` raises, and DataError for a shard of less than 2 examples.
    """
    if isinstance(shard, str):
        shard = Shard.parse(shard, partition, seed)
    if shard is not None:
        whole = central(spec, root)
        return part(whole, shard.of_dataset(whole), name=name)
    if spec in DATASETS:
        whole = central(spec, root)
        return part(whole, drawn(whole, name), name=name)
    own = load(spec, root)
    return own if len(own.x_held) else part(own, np.arange(len(own.x)), name=name)


def part(whole: Dataset, indices: Indices, *, name: str, held: float = HELD) -> Dataset:
    """Some training examples of a data set as the data of the agent `name`, a share of them held
    out; `whole`'s held-out part stays behind.

    Raises DataError for less than 2 examples.
    """
    if len(indices) < 2:
        raise DataError(
            f"{whole.name}, shard of '{name}': expected at least 2 examples, found {len(indices)}"
        )
    if whole.sessions is None:
        train, local = hold_out(strata(whole)[0][indices], held, generator("held", name))
    else:
        users = np.zeros(len(whole.x), np.int64) if whole.users is None else whole.users
        train, local = hold_out_last(whole.sessions[indices], users[indices], held)
    return _divided(whole, indices[train], indices[local])


def _divided(dataset: Dataset, train: Indices, held: Indices) -> Dataset:
    x, y = dataset.x, dataset.y
    users, sessions = (
        None if of is None else of[train] for of in (dataset.users, dataset.sessions)
    )
    return replace(
        dataset,
        x=x[train],
        y=y[train],
        x_held=x[held],
        y_held=y[held],
        users=users,
        sessions=sessions,
    )


def _several(dataset: Dataset) -> Dataset:
    """A source of one class is a mistake (a shard of one class is not)."""
    if dataset.target == "class" and len(dataset.labels) < 2:
        raise DataError(
            f"{dataset.name}: expected examples of at least 2 classes in y, found only "
            f"class {dataset.labels[0]}"
        )
    return dataset
