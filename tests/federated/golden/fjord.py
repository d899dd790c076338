"""FjORD."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from federated.engine.aggregate import Total, fold
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.task import Update
from models.families.catalogue import FAMILIES
from models.submodel import Submodel, scale_count
from tests.support.golden import close, floats, golden


def check_fjord_aggregate(toy):
    """Check tracked norm with separate affine: a linear layer is shared by nested means, and the
    whole norm belongs to the width.
    """
    g = golden("fjord_aggregate")
    whole = toy(lambda submodel: {})
    FAMILIES["toy"] = replace(
        FAMILIES["toy"],
        build=lambda s: nn.Sequential(
            nn.Linear(1, n := scale_count(s.width, g["width"]), bias=False), nn.BatchNorm1d(n)
        ),
    )
    old_weight, *_, old_norm = (floats(value) for value in g["original"])
    before = {"0.weight": old_weight} | {
        f"1.{part}": old_norm for part in ("weight", "bias", "running_mean", "running_var")
    }
    submodels = {p: Submodel(whole.network, p, whole.mask) for p in g["p_s"]}
    chosen = find_method("fjord")
    settings = configure(chosen, {"widths": g["p_s"], "norm": "tracked", "affine": "separate"})
    for case in (g["caseA"], g["caseB"]):
        state, total = chosen.start(before, list(submodels.values()), settings), Total()
        for index, client in enumerate(case["clients"]):
            submodel = submodels[client["p_max"]]
            plan = chosen.place(state, submodel)
            sent = {
                name: torch.full_like(value, client["value"])
                for name, value in chosen.dispatch(state, plan).items()
            }
            update = Update("r", 1, 0, str(index), "train", submodel, "0", client["n"], 1, sent)
            assert fold(total, chosen.parts(state, plan, update), (update.agent,))
        after = chosen.finish(state, total, None)
        close(after.tensors["0.weight"], case["expected_weight"])
        for p, submodel in submodels.items():
            found = chosen.dispatch(after, chosen.place(after, submodel))
            for part in ("weight", "bias", "running_mean", "running_var"):
                close(found[f"1.{part}"], case[f"expected_bn_p{p}"])
