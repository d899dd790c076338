"""A method on a small network, and one round of it with handmade updates."""

from __future__ import annotations

import numpy as np

from federated.engine.aggregate import Total, fold
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.task import Update
from models.named_network import network
from models.submodel_building import initial

__all__ = ["NET", "play_round", "start"]

NET = network("preresnet", (1, 8, 8), 10)


def start(name, **given):
    chosen = find_method(name)
    settings_ = configure(chosen, given)
    return chosen, chosen.start(
        initial(NET, 0, chosen.features), chosen.menu(NET, settings_), settings_
    )


def play_round(chosen, state, *updates):
    total = Total()
    for index, (submodel, tensors, samples, notes) in enumerate(updates):
        one = Update("r", 0, 0, str(index), "train", submodel, "0", samples, 1, tensors, notes)
        fold(total, chosen.parts(state, chosen.place(state, one.submodel), one), (index,))
    return chosen.finish(state, total, np.random.default_rng(0)).tensors
