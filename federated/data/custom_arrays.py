"""Read a user's own arrays, from an `.npz` file or a function, as a checked Dataset.

An `.npz` file holds `x` [n, ...] and `y`, and optionally `x_test` and `y_test` (or `x_held` and
`y_held`), `outputs` (a number), `target` ("class", "value" or "token"), `users` [n], and, if x
holds texts with classes or values, `vocabulary` (the number of tokens). A function takes no
argument, or the folder of named data sets, and returns (x, y), (x, y, x_held, y_held) or a Dataset.

Whole numbers in y are classes, fractions are values. Images are channel-first, [n, channels,
height, width]; [n, height, width] becomes one channel. uint8 and float32 are kept, other numbers
become float32, tokens of texts [n, T] int64. Without `outputs`, the number of classes is the
largest label plus 1, so a device without the last class must set it.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from federated.data.dataset import Array, Dataset, Labels, Values
from federated.errors import DataError, describe_value
from models.extension_lookup import list_required_parameters, locate_failure
from models.given_objects import describe_name

__all__ = ["UNREADABLE", "call", "dataset", "read_npz"]

# beside the held-out part
KEYS = ("x", "y", "outputs", "target", "users", "vocabulary", "tokenizer")
# errors of numpy for a damaged file
UNREADABLE = (
    OSError,
    EOFError,
    KeyError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_npz(path: Path) -> Dataset:
    """Return the arrays of a file. DataError: it is missing or unusable."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = dict(arrays)
    except FileNotFoundError:
        raise DataError(f"data '{path}': no such file") from None
    except UNREADABLE as error:
        why = (
            "it is damaged, or contains pickled objects, which are not supported"
            if "allow_pickle" in str(error)
            else "it is damaged, or of another format"
            if isinstance(error, zipfile.BadZipFile)
            else error
        )
        raise DataError(f"data '{path}': expected an .npz file of plain arrays: {why}") from error
    # only the file name, since the card names its data: local folders never leave the device
    return _read_arrays(path.name, found)


def call(spec: str, function: Callable[..., Any], root: Path) -> Dataset:
    """Return the data set of a custom function named by `spec`. DataError: it fails, or returns
    something else.
    """
    try:
        found = function(root) if list_required_parameters(function) else function()
    except Exception as error:  # a custom function can raise anything
        raise DataError(f"data '{describe_name(spec)}' failed {locate_failure(error)}") from error
    if isinstance(found, Dataset):
        return found
    if not isinstance(found, tuple) or len(found) not in (2, 4):
        raise DataError(
            f"data '{spec}': expected (x, y), (x, y, x_held, y_held) or a Dataset, "
            f"found {describe_value(found)}"
        )
    return dataset(spec, dict(zip(("x", "y", "x_held", "y_held"), found, strict=False)))


def dataset(name: str, given: Mapping[str, Any]) -> Dataset:
    """Return given arrays as a Dataset.

    given: x and y, and optionally x_held, y_held, outputs, target, users, vocabulary and tokenizer
    DataError: they are unusable
    """
    target, outputs, users = (given.get(key) for key in ("target", "outputs", "users"))
    if target is None:
        target = "value" if np.issubdtype(np.asarray(given["y"]).dtype, np.floating) else "class"
    tokens = _read_number(name, "vocabulary", given.get("vocabulary", 0))
    texts = target == "token" or tokens > 0
    examples = _read_examples(name, "x", given["x"], texts=texts)
    truth = _read_labels(name, "y", given["y"], str(target))
    held, held_truth = examples[:0], truth[:0]
    if given.get("x_held") is not None:
        held = _read_examples(name, "x_held", given["x_held"], texts=texts)
        held_truth = _read_labels(name, "y_held", given["y_held"], str(target))
    if outputs is None and target == "value":
        outputs = truth.shape[1] if truth.ndim > 1 else 1
    elif outputs is None:
        more = (examples, held) if target == "token" else ()
        outputs = max(2, *(int(part.max(initial=0)) + 1 for part in (truth, held_truth, *more)))
    return Dataset(
        name,
        examples,
        truth,
        held,
        held_truth,
        _read_number(name, "outputs", outputs),
        str(target),  # type: ignore[arg-type]
        None if users is None else _to_int64(name, "users", users),
        vocabulary=tokens,
        tokenizer=str(given.get("tokenizer", "")),
    )


def _read_arrays(name: str, arrays: Mapping[str, Any]) -> Dataset:
    missing = [key for key in ("x", "y") if key not in arrays]
    if missing:
        raise DataError(
            f"data '{name}': expected arrays x and y, found {', '.join(sorted(arrays)) or 'none'}"
        )
    given = {key: arrays[key] for key in KEYS if key in arrays}
    for x_held, y_held in (("x_held", "y_held"), ("x_test", "y_test")):
        if (x_held in arrays) != (y_held in arrays):
            raise DataError(
                f"data '{name}': expected {x_held} and {y_held} together, found only one"
            )
        if x_held in arrays:
            given |= {"x_held": arrays[x_held], "y_held": arrays[y_held]}
            break
    return dataset(name, given)


def _read_number(name: str, key: str, value: Any) -> int:
    if np.ndim(value) or not np.issubdtype(np.asarray(value).dtype, np.integer):
        raise DataError(
            f"data '{name}': expected {key} as one whole number, found "
            f"{np.asarray(value).dtype} {list(np.shape(value))}"
        )
    return int(value)


def _read_examples(name: str, key: str, value: Any, *, texts: bool) -> Array:
    if texts:
        return _to_int64(name, key, value)
    array = np.atleast_1d(value)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_) or np.iscomplexobj(
        array
    ):
        raise DataError(f"data '{name}': expected numbers in {key}, found {array.dtype}")
    if array.dtype != np.uint8:
        array = _to_float32(array)
    return array[:, None] if array.ndim == 3 else array


def _read_labels(name: str, key: str, value: Any, target: str) -> Labels | Values:
    if target != "value":
        return _to_int64(name, key, value)
    array = np.atleast_1d(value)
    if not np.issubdtype(array.dtype, np.integer) and not np.issubdtype(array.dtype, np.floating):
        raise DataError(f"data '{name}': expected numbers in {key}, found {array.dtype}")
    return _to_float32(array)


def _to_float32(array: Any) -> Values:
    """Return float32 values. Too large ones become infinite, which a Dataset rejects."""
    with np.errstate(over="ignore"):
        single: Values = array.astype(np.float32, copy=False)
    return single


def _to_int64(name: str, key: str, value: Any) -> Labels:
    array = np.atleast_1d(value)
    if not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"data '{name}': expected whole numbers in {key}, found {array.dtype}")
    return array.astype(np.int64, copy=False)
