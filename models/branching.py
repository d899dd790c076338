"""Find the layers of a network that may have parallel branches, and count their work on the meta
device, which computes no values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from models.families.catalogue import build, example
from models.layers.branches import Branch, Linears, available_branches, output_features, spatial
from models.submodel import Submodel

__all__ = ["BranchableLayer", "branchable_layers"]

BATCH = 2  # examples in the counted pass; more than one, so that batch norm has a variance


@dataclass(frozen=True)
class BranchableLayer:
    """A layer that may have branches.

    kinds: branches that can join the origin, in the order in which they do
    places: positions per example at which each weight multiplies once
    passes: 3 with the gradients of weight and input, 2 without that of the input
    """

    kinds: tuple[Branch, ...]
    places: int
    passes: int


@lru_cache(maxsize=1024)
def branchable_layers(
    submodel: Submodel, most: int, linear: Linears = "copy", rank: int = 8
) -> Mapping[str, BranchableLayer]:
    """Return the layers that may have branches, by name in the order of the forward pass, with at
    most `most` kinds each.

    These are the convolutions whose windows overlap. A network without any uses all its linear
    layers and convolutions. A layer that shares its weight with another has no branches.
    """
    found: dict[str, tuple[nn.Module, int, int]] = {}
    with torch.random.fork_rng(devices=[]):
        net = build(submodel, "meta").train()
        for name, layer in find_candidates(net).items():
            layer.register_forward_hook(partial(record_call, found, name), with_kwargs=True)
        with torch.enable_grad():
            net(example(submodel.network, BATCH, "meta"))
    chosen = {name: row for name, row in found.items() if spatial(row[0])} or found
    made = {
        name: BranchableLayer(
            available_branches(layer, most, linear=linear, rank=rank), places, passes
        )
        for name, (layer, places, passes) in chosen.items()
    }
    return MappingProxyType(made)


def find_candidates(net: nn.Module) -> dict[str, nn.Module]:
    owners: dict[int, int] = {}
    for _, p in net.named_parameters(remove_duplicate=False):
        owners[id(p)] = owners.get(id(p), 0) + 1
    found = {
        name: m
        for name, m in net.named_modules()
        if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)
    }
    return {name: m for name, m in found.items() if owners.get(id(m.weight)) == 1}


def record_call(
    found: dict[str, tuple[nn.Module, int, int]],
    name: str,
    layer: nn.Module,
    given: tuple[Tensor, ...],
    named: dict[str, Tensor],
    out: Tensor,
) -> None:
    """Record one call of a layer; a layer may be called several times."""
    (x,) = (*given, *named.values())
    places = found[name][1] if name in found else 0
    found[name] = (
        layer,
        places + out.numel() // (BATCH * output_features(layer)),
        3 if x.requires_grad else 2,
    )
