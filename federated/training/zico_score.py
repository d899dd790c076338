"""ZiCo: score a submodel on a device's data before training (Li, Yang, Bhardwaj and Marculescu,
Zero-Shot NAS via Inverse Coefficient of Variation on Gradients, arXiv 2301.11300).

    score = sum over layers of log( sum over weights i of the layer with s_i > 0 of
        mean_b |g_i,b| / s_i )

with g_i,b the gradient of weight i on minibatch b, and s_i its standard deviation over the
minibatches (of the population, divided by their number). Layers are convolutions and linear layers.
The network stays at its initial weights: there are forward and backward passes, but no step. A
device scores the submodels of a run on its own data when it joins. FedFA (arXiv 2406.09877)
mentions forward passes only, but gradients need a backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from federated.training import objective
from federated.training.hooks import Survey
from federated.training.training_loop import shuffle, to_device
from models.cost import cost
from models.layers.batch_norm import NORMS
from models.layers.early_exits import run_exits
from models.random_state import isolate_random_state
from models.submodel import Submodel
from models.submodel_building import build

__all__ = ["score", "survey", "zico"]

BATCHES = 2
LEAST = 2  # examples in a minibatch, since batch norm needs two

Batch = tuple[Tensor, Tensor]
"""Inputs of the network, and their truth."""


def zico(gradients: Mapping[str, Tensor]) -> float:
    """Return the score of gradients [minibatches, ...] by layer. A layer whose gradients do not
    vary adds nothing.
    """
    total = 0.0
    for gradient in gradients.values():
        mean, deviation = gradient.double().abs().mean(0), gradient.double().std(0, correction=0)
        moving = deviation > 0
        if bool(moving.any()):
            total += math.log(float((mean[moving] / deviation[moving]).sum()))
    return total


def score(submodel: Submodel, batches: Sequence[Batch], seed: int) -> float:
    """Return the score of a submodel with initial weights from a seed, on the device of the
    batches. Torch's random state does not change.
    """
    device = batches[0][0].device
    with isolate_random_state(seed, str(device)):
        net = build(submodel, seed=seed).to(device).train()
        weights = layers(net)
        found = []
        for x, truth in batches:
            loss = objective.loss(submodel.network, run_exits(net, submodel, x)[-1], truth)
            found.append(
                torch.autograd.grad(
                    loss, list(weights.values()), allow_unused=True, materialize_grads=True
                )
            )
    return zico(
        {
            name: torch.stack(both)
            for name, both in zip(weights, zip(*found, strict=True), strict=True)
        }
    )


def layers(net: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of convolutions and linear layers by module, without norms, embeddings,
    tokens and positions.
    """
    weights = {
        name: getattr(m, "weight", None)
        for name, m in net.named_modules()
        if not isinstance(m, (*NORMS, nn.Embedding))
    }
    return {
        name: weight
        for name, weight in weights.items()
        if isinstance(weight, nn.Parameter) and weight.dim() > 1
    }


def survey(asked: Survey) -> dict[str, Any]:
    """Return {"zico": score by submodel name} for every submodel that fits the device's memory, if
    the settings ask for this choice and there are enough examples for two minibatches; else
    nothing. Leave out scores that are not finite.
    """
    size = min(int(asked.settings["batch"]), len(asked.y) // BATCHES)
    if asked.settings["choice"] != "zico" or size < LEAST:
        return {}
    seed = int(asked.settings["seed"])
    batches = draw_batches(asked, size, torch.Generator().manual_seed(seed))
    fitting = [
        s for s in asked.menu if cost(s, int(asked.settings["batch"])).memory <= asked.memory
    ]
    scores = {submodel.name: score(submodel, batches, seed) for submodel in fitting}
    return {"zico": {name: value for name, value in scores.items() if math.isfinite(value)}}


def draw_batches(asked: Survey, size: int, generator: torch.Generator) -> list[Batch]:
    """Return two disjoint minibatches of a device's examples."""
    found = []
    for chosen, _ in zip(shuffle(len(asked.y), size, generator), range(BATCHES), strict=False):
        x, y = to_device(asked.x[chosen], asked.device), to_device(asked.y[chosen], asked.device)
        found.append(
            objective.prepare_batch(asked.network, float(asked.settings["hide"]), x, y, generator)
        )
    return found
