"""InclusiveFL."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from federated.engine.aggregate import Total, fold
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.task import Update
from tests.support.golden import close, floats, golden


def stack(toy, depth):
    """Return a toy of this number of layers of one number each, and a head."""
    layers = "sections.0.{}.weight"
    return toy(
        lambda submodel: {
            **{layers.format(i): (1,) for i, keep in enumerate(submodel.mask[0]) if keep},
            "linear.weight": (1,),
        },
        (depth,),
    )


def of_depth(whole, depth):
    return replace(whole, mask=(tuple(int(i < depth) for i in range(len(whole.mask[0]))),))


def receive_sizes(whole, updates, **given):
    """Return the tensors that each size receives after a round from zeros; an update is (depth,
    layers' weights, head, samples).
    """
    chosen = find_method("inclusivefl")
    sizes = [of_depth(whole, depth) for depth, *_ in updates]
    before = {
        name: torch.zeros(1)
        for name in (
            *(f"sections.0.{i}.weight" for i in range(len(whole.mask[0]))),
            "linear.weight",
        )
    }
    state, total = (
        chosen.start(
            before, sizes, configure(chosen, {"depths": [depth for depth, *_ in updates], **given})
        ),
        Total(),
    )
    for index, (size, (_, layers, head, samples)) in enumerate(zip(sizes, updates, strict=True)):
        tensors = {f"sections.0.{i}.weight": floats([value]) for i, value in enumerate(layers)} | {
            "linear.weight": floats([head])
        }
        update = Update("r", 0, 0, str(index), "train", size, "0", samples, 1, tensors)
        assert fold(total, chosen.parts(state, chosen.place(state, size), update), (str(index),))
    after = chosen.finish(state, total, np.random.default_rng(0))
    return [chosen.dispatch(after, chosen.place(after, size)) for size in sizes]


def check_inclusivefl(toy):
    g = golden("inclusivefl")
    models = [
        (m["depth"], [m["value"]] * m["depth"], m["value"], int(8 * n))
        for m, n in zip(g["models"], g["sample_portion"], strict=True)
    ]
    for found, expected in zip(
        receive_sizes(stack(toy, 3), models, beta=0.0), g["expected"], strict=True
    ):
        assert len(found) == len(expected)
        for name, value in expected.items():
            close(
                found[
                    "linear.weight"
                    if name == "cls"
                    else f"sections.0.{name.removeprefix('layer.')}.weight"
                ],
                [value],
            )
    m = g["momentum"]
    small = (m["small_depth"], [-m["grad_small_top"][0]], 0.0, 1)
    large = (m["large_depth"], [-gradient for (gradient,) in m["grads_large_layers"]], 0.0, 3)
    mine, _ = receive_sizes(stack(toy, m["large_depth"]), [small, large], beta=m["beta"])
    close(mine["sections.0.0.weight"], [-value for value in m["expected_injected"]])
