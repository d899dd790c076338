"""HeteroFL."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from federated.methods.catalogue import find_method
from federated.training.objective import mark_labels, mask_logits
from models.layers.basic import Scaler
from models.submodel import Submodel, scale_count
from tests.support.golden import close, floats, golden, play_round


def check_heterofl_aggregate(toy):
    g = golden("heterofl_aggregate")

    def tensors(submodel):
        n = scale_count(submodel.width, 4)
        return {
            "blocks.0.weight": (n, 1, 1, 1),
            "blocks.0.bias": (n,),
            "linear.weight": (3, n),
            "linear.bias": (3,),
        }

    whole = toy(tensors)
    before = {
        name: floats(value).reshape(g["shapes"][name]) for name, value in g["global_before"].items()
    }
    for case in (g["case_A"], g["case_B"]):
        updates = []
        for client, value in zip(case["sampled"], case["local_constant_values"], strict=True):
            submodel = Submodel(whole.network, g["rates"][client], whole.mask)
            local = {
                name: torch.full(shape, float(value)) for name, shape in tensors(submodel).items()
            }
            updates.append((submodel, local, 1 + 7 * client, {"labels": g["label_split"][client]}))
        after = play_round(find_method("heterofl"), before, updates)
        for name, expected in case["expected"].items():
            close(after[name], expected)


def check_heterofl_masked_ce(toy):
    g = golden("heterofl_masked_ce")
    given = floats(g["logits"])
    logits = mask_logits(given, mark_labels(g["labels_present"], given.shape[1], "cpu"))
    close(logits, g["expected_masked_logits"])
    close(cross_entropy(logits, torch.tensor(g["label"])), g["expected_loss"])


def check_heterofl_scaler(toy):
    g = golden("heterofl_scaler")
    layer = Scaler(g["rate"])
    close(layer.train()(floats(g["x"])), g["train"])
    close(layer.eval()(floats(g["x"])), g["eval"])
