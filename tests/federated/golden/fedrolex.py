"""FedRolex."""

from __future__ import annotations

from dataclasses import replace

import torch

from federated.method import configure
from federated.methods.catalogue import find_method
from models.submodel import Submodel, scale_count
from tests.support.golden import close, golden


def check_fedrolex_index(toy):
    """Compare a narrow device's part of a vector that holds its own indices."""
    g = golden("fedrolex_index")
    whole = toy(lambda submodel: {"w": (scale_count(submodel.width, g["W"]),)})
    chosen, narrow = find_method("fedrolex"), Submodel(whole.network, g["rate"], whole.mask)
    for direction, key in (("author", "author_indices"), ("paper", "paper_direction")):
        state = chosen.start(
            {"w": torch.arange(float(g["W"]))}, [whole], configure(chosen, {"direction": direction})
        )
        state = replace(state, round=g["round"])
        close(chosen.dispatch(state, chosen.place(state, narrow))["w"], g[key])
