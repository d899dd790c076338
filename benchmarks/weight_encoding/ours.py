"""Encode an update of a ResNet-18 with this project's lossy codecs, to compare their speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from federated.task import Update
from federated.wire.codecs.catalogue import CODECS
from federated.wire.codecs.codec import Tensors, encode_update
from models.named_network import network
from models.submodel_building import full, initial

__all__ = ["initial_weights", "int8", "make_update", "top_tenth"]

NETWORK = network("preresnet-18", (3, 32, 32), 10)


def initial_weights() -> Tensors:
    return {name: value.numpy() for name, value in initial(NETWORK, 0).items()}


def make_update(weights: Tensors) -> Update:
    return Update("run", 1, 1, "agent", "train", full(NETWORK), "r0", 1, 1, weights)


def int8(task: Mapping[str, Any]) -> Callable[[], object]:
    update = make_update(initial_weights())
    return lambda: encode_update(update, CODECS["int8"], {})


def top_tenth(task: Mapping[str, Any]) -> Callable[[], object]:
    update = make_update(initial_weights())
    return lambda: encode_update(update, CODECS["top10-zstd"], {})
