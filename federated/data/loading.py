"""Load a data set by name: the whole, the part that a coordinator has (`load_central`), or the part
that a device has (`load_device`).

A data set is a key of DATASETS, an entry point of the group `espalier.data`, the path of an `.npz`
file, a `.csv` file or a folder of images (or the `.zip` of one), or `module:function`. The
formats are documented in `custom_arrays`, `csv_tables` and `image_folders`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from federated.data.catalogue import DATASETS, POINT
from federated.data.csv_tables import is_table, read_table
from federated.data.custom_arrays import call, read_npz
from federated.data.dataset import Dataset, Indices
from federated.data.held_out_splits import hold_out, hold_out_last, hold_out_users, strata
from federated.data.image_folders import read_folder, read_zip
from federated.data.partitions import Shard, draw_shard, seed_generator
from federated.defaults import HELD, PARTITION, SEED
from federated.errors import ConfigError, DataError
from federated.runtime.extension_errors import find
from models.extension_lookup import known_names

__all__ = ["data_root", "load", "load_central", "load_device", "take_classes", "take_part"]


def data_root() -> Path:
    """Return the folder of published data sets: $ESPALIER_DATA, else ~/.cache/espalier."""
    return Path(os.environ.get("ESPALIER_DATA") or Path.home() / ".cache" / "espalier")


def load(spec: str, root: Path | str | None = None) -> Dataset:
    """Return a whole data set as published, with its test part, if any, held out.

    Unknown: no such name. DataError: the data are missing, unreadable or unusable. MissingExtra.
    """
    if spec in DATASETS:
        return DATASETS[spec].load(Path(root) if root else data_root())
    if spec in known_names(POINT, {}):
        return _load_foreign(spec, root)
    path = Path(spec)
    if path.is_dir():
        return _check_classes(read_folder(path))
    if spec.endswith(".zip"):
        return _check_classes(read_zip(path))
    if spec.endswith(".npz"):
        return _check_classes(read_npz(path))
    if is_table(spec):
        return _check_classes(read_table(spec))
    if ":" in spec:
        return _load_foreign(spec, root)
    if "/" in spec or os.sep in spec or path.exists():
        raise DataError(
            f"data '{spec}': expected an existing .npz or .csv file, an existing folder or .zip of "
            f"images, one of {', '.join(known_names(POINT, DATASETS))}, or module:function"
        )
    return _load_foreign(spec, root)  # raises Unknown


def _load_foreign(spec: str, root: Path | str | None) -> Dataset:
    """Return the data of an installed package, or of `module:function`. Unknown, DataError: as in
    `load`.
    """
    known: Mapping[str, Callable[..., Any]] = {name: one.load for name, one in DATASETS.items()}
    try:
        function = find(POINT, spec, known)
    except ConfigError as error:
        raise DataError(str(error)) from error
    return _check_classes(call(spec, function, Path(root) if root else data_root()))


def load_central(spec: str, root: Path | str | None = None) -> Dataset:
    """Return the data of a coordinator, with a held-out part: the published test part, or else 20 %
    of every class (or of the people), which no agent's shard contains.

    A deployed coordinator uses only the held-out part; a simulation splits the rest into shards.
    """
    dataset = load(spec, root)
    if len(dataset.x_held):
        return dataset
    # seeded by the name, not the path, so that coordinator and agents draw the same
    rng = seed_generator("central", dataset.name)
    if dataset.users is not None and len(np.unique(dataset.users)) > 1:
        return _divide(dataset, *hold_out_users(dataset.users, HELD, rng))
    return _divide(dataset, *hold_out(strata(dataset)[0], HELD, rng))


def load_device(
    spec: str,
    root: Path | str | None = None,
    *,
    name: str,
    shard: Shard | str | None = None,
    partition: str = PARTITION,
    seed: int = SEED,
) -> Dataset:
    """Return the data of the agent `name`, with a held-out part: some examples of every class, or
    the last recordings; at least 1 example.

    shard: the part of the data set to use: a Shard, or I/N of `partition`, drawn with `seed`.
        Without one, use a shard drawn from the agent's name if the data set is built in, else all
        of it, with its own test part held out.
    DataError: the shard has less than 2 examples. All errors of `load`.
    """
    if isinstance(shard, str):
        shard = Shard.parse(shard, partition, seed)
    if shard is not None:
        whole = load_central(spec, root)
        return take_part(whole, shard.of_dataset(whole), name=name)
    if spec in DATASETS:
        whole = load_central(spec, root)
        return take_part(whole, draw_shard(whole, name), name=name)
    own = load(spec, root)
    return own if len(own.x_held) else take_part(own, np.arange(len(own.x)), name=name)


def take_part(whole: Dataset, indices: Indices, *, name: str, held: float = HELD) -> Dataset:
    """Return some training examples of a data set as the data of the agent `name`, with the
    fraction `held` held out. Drop the held-out part of `whole`.

    DataError: there are less than 2 examples.
    """
    if len(indices) < 2:
        raise DataError(
            f"{whole.name}, shard of '{name}': expected at least 2 examples, found {len(indices)}"
        )
    if whole.sessions is None:
        train, local = hold_out(strata(whole)[0][indices], held, seed_generator("held", name))
    else:
        users = np.zeros(len(whole.x), np.int64) if whole.users is None else whole.users
        train, local = hold_out_last(whole.sessions[indices], users[indices], held)
    return _divide(whole, indices[train], indices[local])


def take_classes(whole: Dataset, indices: Indices) -> Dataset:
    """Return some training examples of a data set as the data of an agent, with the held-out
    examples of their classes. Drop all others.

    DataError: the examples have no classes.
    """
    if whole.target != "class":
        raise DataError(
            f"{whole.name}: expected examples of classes, found those of {whole.target}s, which "
            "have no held-out examples of their classes: set simulate.local_test = 'own'"
        )
    held = np.isin(whole.y_held, np.unique(whole.y[indices]))
    part = _divide(whole, indices, indices)
    return replace(part, x_held=whole.x_held[held], y_held=whole.y_held[held])


def _divide(dataset: Dataset, train: Indices, held: Indices) -> Dataset:
    users, sessions = (
        None if values is None else values[train] for values in (dataset.users, dataset.sessions)
    )
    return replace(
        dataset,
        x=dataset.x[train],
        y=dataset.y[train],
        x_held=dataset.x[held],
        y_held=dataset.y[held],
        users=users,
        sessions=sessions,
    )


def _check_classes(dataset: Dataset) -> Dataset:
    """Return a source of at least two classes; one class is a mistake, unlike in a shard.
    DataError.
    """
    if dataset.target == "class" and len(dataset.labels) < 2:
        raise DataError(
            f"{dataset.name}: expected examples of at least 2 classes in y, found only "
            f"class {dataset.labels[0]}"
        )
    return dataset
