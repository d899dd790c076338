"""List the data sets that are known by name; `federated.data.loading` loads them."""

from __future__ import annotations

from collections.abc import Mapping

from federated.data.dataset import BuiltIn
from federated.data.digits import DIGITS
from federated.data.published_images import CIFAR10, CIFAR100, CINIC10, FASHION_MNIST, MNIST, SVHN
from federated.data.published_sequences import HAR, MNLI, WIKITEXT_2
from models.extension_lookup import ExtensionPoint

__all__ = ["DATASETS", "POINT"]

POINT = ExtensionPoint("data set", "espalier.data")

DATASETS: Mapping[str, BuiltIn] = {
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "cinic10": CINIC10,
    "digits": DIGITS,
    "fashion-mnist": FASHION_MNIST,
    "har": HAR,
    "mnist": MNIST,
    "mnli": MNLI,
    "svhn": SVHN,
    "wikitext-2": WIKITEXT_2,
}
