"""Examples stay on their device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from federated.task import Update
from federated.wire.link import Delivery
from federated.wire.links.memory import MemoryBroker
from tests.support.memory_federation import Member, digits, federate

# whole networks, so that a tensor has room for an example; scores and moments are sent, too
SETTINGS = {
    "data.name": "agents",
    "model.name": "mlp-small",
    "method.name": "fedavg",
    "train.steps": 2,
    "evaluate.between": False,
}


def put_in(example: np.ndarray, update: Update) -> Update:
    """Return the update of a device that hides an example among its weights."""
    if update.work != "train":
        return update
    name, tensor = max(update.tensors.items(), key=lambda item: item[1].size)
    flat = tensor.flatten()
    flat[: example.size] = example.ravel()
    return replace(update, tensors={**update.tensors, name: flat.reshape(tensor.shape)})


@pytest.mark.parametrize("hidden", [False, True])
def test_no_message_contains_an_example(tmp_path: Path, hidden: bool) -> None:
    """Neither as stored nor as floats, in whatever messages the agents exchange with the
    coordinator. An example that is hidden among the weights is found.
    """
    sent = bytearray()

    def record(delivery: Delivery) -> Iterable[Delivery]:
        sent.extend(delivery.payload)
        return [delivery]

    data = [digits(i, 2) for i in range(2)]
    leaked = data[0].x[0]
    group = [
        Member("a0", data[0], change=lambda update: put_in(leaked, update) if hidden else update),
        Member("a1", data[1]),
    ]
    federate(tmp_path, group, SETTINGS, broker=MemoryBroker(tamper=record))
    examples = [one for part in data for x in (part.x, part.x_held) for one in x]
    assert len(examples) > 1000
    found = [
        one for one in examples if one.tobytes() in sent or one.astype("float32").tobytes() in sent
    ]
    assert [one.tobytes() for one in found] == ([leaked.tobytes()] if hidden else [])
