"""Read the real raw examples that an export is compared with and calibrated on."""

from __future__ import annotations

import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from coordinator.settings.config import Config
from coordinator.settings.config_tables import AGENTS
from export.onnx_session import Array
from federated.data import loading as data
from federated.data.dataset import describe_examples
from federated.errors import ConfigError, DataError
from federated.flag_and_argument_names import INPUTS
from federated.training.objective import prepare_batch
from models.given_objects import describe_name, is_missing
from models.submodel import Network

__all__ = ["load_examples", "read_examples"]

# raw inputs: 128 to calibrate int8, and 1024 to measure accuracy, of which 5 are half a percentage
# point
MOST = 128 + 1024

Examples = tuple[Array, Array | None, tuple[str, ...]]
"""Raw examples [n, *inputs] in the form that the network receives, the right answers if they are
known, and the names of the classes if they are known.
"""


def load_examples(config: Config, inputs: Path | None, network: Network, hide: float) -> Examples:
    """Return examples from a file, or drawn from the run's held-out data. hide: share of hidden
    tokens. Raises ConfigError, DataError.
    """
    if inputs is not None:
        return read_examples(inputs, network, hide)
    if config.data.name == AGENTS:
        raise ConfigError.naming(
            lambda spell: (
                "the coordinator of this run has no data: give raw examples to compare "
                f"with, with {spell(INPUTS)}"
            )
        )
    if is_missing(config.data.name):
        raise ConfigError.naming(
            lambda spell: (
                "the data of this run were passed to a Python program, and are not in this "
                f"process: give raw examples to compare with, with {spell(INPUTS)}"
            )
        )
    whole = data.load_central(config.data.name, config.data.root)
    return draw((whole.x_held, whole.y_held, whole.classes), network, hide)


def read_examples(inputs: Path, network: Network, hide: float) -> Examples:
    """Return examples from a file or data set. Raises DataError if they do not fit the network."""
    found = read_inputs(inputs, network)
    shape = found[0].shape
    if shape[1:] != network.inputs:
        raise DataError(
            f"{describe_name(str(inputs))}: expected examples x of shape [n, "
            f"{', '.join(map(str, network.inputs))}], found {list(shape)}"
        )
    return draw(found, network, hide)


def read_inputs(path: Path, network: Network) -> Examples:
    """Return raw examples and answers. Raises DataError for an invalid file, or answers that do not
    fit the network.
    """
    if path.suffix == ".npz" and path.is_file():
        # read_npz reports what is wrong with the file
        with (
            suppress(ValueError, OSError, zipfile.BadZipFile),
            np.load(path, allow_pickle=False) as arrays,
        ):
            if "x" in arrays.files and "y" not in arrays.files:
                return arrays["x"], None, ()
    whole = data.load(str(path))
    if (wanted := describe_examples(network)) != (found := describe_examples(whole)):
        raise DataError(
            f"{describe_name(str(path))}: expected {wanted}, as in the network; found {found}"
        )
    if whole.target != network.target or whole.outputs > network.outputs:
        words = {"class": "classes", "token": "tokens", "value": "values"}
        raise DataError(
            f"{describe_name(str(path))}: expected at most {network.outputs} "
            f"{words[network.target]} in y, as in the network; found {whole.outputs} "
            f"{words[whole.target]}"
        )
    return whole.x, whole.y, whole.classes


def draw(found: Examples, network: Network, hide: float) -> Examples:
    """Return a random part of the examples, with hidden tokens if the network guesses them."""
    x, y, classes = found
    drawn = np.random.default_rng(0).permutation(len(x))[:MOST]
    x, y = np.ascontiguousarray(x[drawn]), None if y is None else y[drawn]
    if network.objective != "masked":
        return x, y, classes
    posed, truth = prepare_batch(
        network, hide, torch.from_numpy(x), torch.from_numpy(x), torch.Generator().manual_seed(0)
    )
    return posed.numpy(), truth.numpy(), ()
