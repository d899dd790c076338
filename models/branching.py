"""Which layers of a network may have parallel branches, and how much work each is: counted on the
meta device, where nothing is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from models.families.catalogue import build, example
from models.layers.branches import Branch, Linears, kinds, outgoing, spatial
from models.submodel import Submodel

__all__ = ["Layer", "layers"]

BATCH = 2  # examples in the counted pass; more than one, so that batch norm has a variance


@dataclass(frozen=True)
class Layer:
    """A layer that may have branches. kinds: those that can join the origin, in the order in which
    they do.

    places: positions per example at which each weight multiplies once. passes: 3 with the gradients
    of weight and input, 2 without the latter.
    """

    kinds: tuple[Branch, ...]
    places: int
    passes: int


@lru_cache(maxsize=1024)
def layers(
    submodel: Submodel, most: int, linear: Linears = "copy", rank: int = 8
) -> Mapping[str, Layer]:
    """The layers of a network that may have branches, by name, in the order of the forward pass;
    each with at most `most` kinds.

    Convolutions whose windows overlap; of a network without any, all linear layers (and
    convolutions). A layer that shares its weight with another has none.
    """
    found: dict[str, tuple[nn.Module, int, int]] = {}
    with torch.random.fork_rng(devices=[]):
        net = build(submodel, "meta").train()
        for name, layer in able(net).items():
            layer.register_forward_hook(partial(seen, found, name), with_kwargs=True)
        with torch.enable_grad():
            net(example(submodel.network, BATCH, "meta"))
    chosen = {name: row for name, row in found.items() if spatial(row[0])} or found
    made = {
        name: Layer(kinds(layer, most, linear=linear, rank=rank), places, passes)
        for name, (layer, places, passes) in chosen.items()
    }
    return MappingProxyType(made)


def able(net: nn.Module) -> dict[str, nn.Module]:
    owners: dict[int, int] = {}
    for _, p in net.named_parameters(remove_duplicate=False):
        owners[id(p)] = owners.get(id(p), 0) + 1
    found = {
        name: m
        for name, m in net.named_modules()
        if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)
    }
    return {name: m for name, m in found.items() if owners.get(id(m.weight)) == 1}


def seen(
    found: dict[str, tuple[nn.Module, int, int]],
    name: str,
    layer: nn.Module,
    given: tuple[Tensor, ...],
    named: dict[str, Tensor],
    out: Tensor,
) -> None:
    """Counts one call of a layer, which may be called more than once."""
    (x,) = (*given, *named.values())
    places = found[name][1] if name in found else 0
    found[name] = (
        layer,
        places + out.numel() // (BATCH * outgoing(layer)),
        3 if x.requires_grad else 2,
    )
