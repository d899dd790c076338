"""RecipFL."""

from __future__ import annotations

import numpy as np
import torch

from federated.engine.aggregate import Total, fold
from federated.method import State, configure
from federated.methods.common.recipfl_student_training import student_loss
from federated.methods.hypernetwork.decoder import normalise, tile
from federated.methods.hypernetwork.operation_graph import scale_factor
from federated.methods.recipfl import recipfl_with
from federated.task import Update
from tests.support.golden import by_owner, close, floats, golden


def made(phi, state, submodel):
    """Return the golden file's hypernetwork: owner 0 has the small network, owner 1 the large."""
    p = phi["p"]
    return {"w": p[:1] if submodel.owner == "0" else torch.stack([p[0] + p[1], p[0] * p[1]])}


def check_recipfl_server(toy):
    g = golden("recipfl_server")
    updated = [{"w": floats(g["updated"][size])} for size in ("small", "large")]
    subs = by_owner(toy, {"w": torch.zeros(2)}, updated)
    chosen = recipfl_with(made)
    for weighting, key in (("sum", "unweighted"), ("samples", "weighted")):
        given = {
            "weighting": weighting,
            "encode": "agent",
            "server": "sgd",
            "server_lr": g["server_lr_sgd"],
            "server_clip": float(g["clip_grad_norm"]),
        }
        settings = configure(chosen, given)
        assert configure(chosen, {})["server_clip"] == g["clip_grad_norm"]
        state, total = State(0, {"phi/p": floats(g["phi"])}, settings), Total()
        for index, (submodel, tensors, share) in enumerate(
            zip(subs, updated, g["data_shares"], strict=True)
        ):
            update = Update(
                "r", 0, 0, str(index), "train", submodel, "0", round(100 * share), 1, tensors
            )
            fold(total, chosen.parts(state, chosen.place(state, submodel), update), (index,))
        after = chosen.finish(state, total, np.random.default_rng(0)).tensors["phi/p"]
        close(after, g[f"expected_phi_{key}"])
        close((floats(g["phi"]) - after) / g["server_lr_sgd"], g[f"expected_grad_{key}"])
    close(chosen.dispatch(state, chosen.place(state, subs[1]))["w"], [3, 2])


def check_recipfl_kd(toy):
    g = golden("recipfl_kd")
    student, teacher, features, taught = (
        floats(g[f"{who}_{what}"]) for what in ("logits", "feat") for who in ("student", "teacher")
    )
    label = torch.tensor([g["label"]])
    close(student_loss(student, teacher, features, taught, label), g["expected_total"])
    close(
        student_loss(student, teacher, features[:, :2], taught, label),
        g["expected_ce"] + g["expected_soft_ce"],
    )


def check_ghn_tile_norm(toy):
    g = golden("ghn_tile_norm")
    close(tile(floats(g["pred"]), g["target_shape"]), g["expected_tiled"])
    close(
        tile(floats(g["slice_example"]["pred"]), g["slice_example"]["target"]),
        g["slice_example"]["expected"],
    )
    shape = g["conv_weight_ones_shape"]
    close(
        normalise(torch.ones(shape), "weight", scale_factor(shape)),
        torch.full(shape, g["expected_scale"]).tolist(),
    )
    close(normalise(floats([1.0]), "scale", 1.0), [g["norm_w(1.0)"]])
    close(normalise(floats([1.0]), "bias", 1.0), [g["bias(1.0)"]])
