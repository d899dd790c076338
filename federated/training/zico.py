"""ZiCo: Li, Yang, Bhardwaj and Marculescu, Zero-Shot NAS via Inverse Coefficient of Variation on
Gradients (arXiv 2301.11300).

    score = sum over layers of log( sum over weights i of the layer with s_i > 0 of  mean_b |g_i,b|
    / s_i )

g_i,b the gradient of weight i on minibatch b, s_i its standard deviation over the minibatches (of
the population, divided by their number). Layers are convolutions and linears. The network stays as
it is initialised: forward and backward passes, and no step. A device's own data score the submodels
of a run when it joins. FedFA (arXiv 2406.09877) speaks of forward passes alone, but there is no
gradient without a backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from federated.training import objective
from federated.training.hooks import Survey
from federated.training.loop import moved, shuffled
from models.cost import cost
from models.families.catalogue import build
from models.layers.batch_norm import NORMS
from models.submodel import Submodel

__all__ = ["score", "survey", "zico"]

BATCHES = 2
LEAST = 2  # examples in one: batch norm needs two to see a spread

Batch = tuple[Tensor, Tensor]
"""Examples as the network is shown them, and the truth."""


def zico(gradients: Mapping[str, Tensor]) -> float:
    """The score of gradients [minibatches, ...] by layer; a layer of which no gradient varies adds
    nothing.
    """
    total = 0.0
    for gradient in gradients.values():
        mean, deviation = gradient.double().abs().mean(0), gradient.double().std(0, correction=0)
        moving = deviation > 0
        if bool(moving.any()):
            total += math.log(float((mean[moving] / deviation[moving]).sum()))
    return total


def score(submodel: Submodel, batches: Sequence[Batch], seed: int) -> float:
    """The score of a submodel as it is initialised from a seed, where the batches lie; torch's
    random state stays as it was.
    """
    device = batches[0][0].device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        net = build(submodel).to(device).train()
        weights = layers(net)
        found = []
        for x, truth in batches:
            loss = objective.loss(submodel.network, objective.answers(net, submodel, x)[-1], truth)
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
    """Weights of convolutions and linears by module; those of norms and embeddings are no such
    layers, nor are tokens and positions.
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
    """{"zico": score by submodel's name} of every submodel that the device's memory can hold, where
    the settings ask for this choice; else nothing.

    Nothing as well with too few examples for two minibatches. A score that is not finite is left
    out.
    """
    size = min(int(asked.settings["batch"]), len(asked.y) // BATCHES)
    if asked.settings["choice"] != "zico" or size < LEAST:
        return {}
    seed = int(asked.settings["seed"])
    batches = drawn(asked, size, torch.Generator().manual_seed(seed))
    fitting = [
        s for s in asked.menu if cost(s, int(asked.settings["batch"])).memory <= asked.memory
    ]
    scores = {submodel.name: score(submodel, batches, seed) for submodel in fitting}
    return {"zico": {name: value for name, value in scores.items() if math.isfinite(value)}}


def drawn(asked: Survey, size: int, generator: torch.Generator) -> list[Batch]:
    """Two disjoint minibatches of a device's examples."""
    found = []
    for chosen, _ in zip(shuffled(len(asked.y), size, generator), range(BATCHES), strict=False):
        x, y = moved(asked.x[chosen], asked.device), moved(asked.y[chosen], asked.device)
        found.append(objective.pose(asked.network, float(asked.settings["hide"]), x, y, generator))
    return found
