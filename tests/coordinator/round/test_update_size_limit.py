"""The size that a coordinator admits is enough for the updates of honest devices."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from coordinator.round.collector_interface import limit_size
from federated.wire import tensors
from federated.wire.codecs.catalogue import find_codec
from federated.wire.codecs.codec import encode_update
from models.menu import menu
from models.named_network import network
from tests.support.small_tasks import perform_task, task, weights

CLASSES = 100_000  # as many as words in the vocabulary of a text


def test_an_update_may_name_every_class_of_a_large_vocabulary():
    """The list of classes alone takes more than the rest of an update's header may."""
    (submodel,) = menu(network("mlp", (4,), CLASSES), (0.03125,), (1,))
    x, y = np.zeros((CLASSES, 4), np.float32), np.arange(CLASSES)
    data = SimpleNamespace(x=x, y=y, x_held=x[:4], y_held=y[:4], labels=tuple(range(CLASSES)))
    received = weights(submodel)
    sent = replace(
        task("train", submodel, steps=1, labels=True), size=len(tensors.encode({}, received))
    )
    update = perform_task(sent, received, data)
    assert len(update.notes["labels"]) == CLASSES
    size = sum(len(piece) for piece in encode_update(update, find_codec("raw"), received))
    assert size <= limit_size(sent)
