"""Networks of the user's own, from "module:function".

The function returns an `nn.Module` for standardised floats [N, *inputs], (x - mean) / std of the
raw data, which gives [N, outputs]: logits, or standardised values. It may take the `Submodel`, for
`submodel.network.inputs` and `outputs`, or nothing. There are two ways to scale:

**It returns its whole network**, and that is cut for it.

- Width: `torch.fx` follows an example through the network and finds which axes are the same
  channels. Each such group keeps its leading
  `kept(width, channels)`, in every tensor, initial values included; inputs and outputs keep all.
  Known are linear layers, convolutions (transposed and depthwise ones too), batch, instance, group,
  layer and RMS norm, PReLU, activations, dropout, pooling, padding, what works element by element,
  means over axes, and flatten, view, reshape and permute that leave channels whole. Channels that
  go into anything else (attention, recurrent layers, concatenation of channels, chunks, sizes
  written down as numbers) stay whole, as do those of a group norm at a width at which its groups do
  not divide. The forward pass must not branch on its input. A device builds the whole network
  before it cuts it, so it must have room for that.
- Depth: blocks are modules of one class of the user's, neither a bare layer nor an `nn.Sequential`,
  that follow each other in an `nn.Sequential` or
  `nn.ModuleList` and keep the shape. A run of them, with the block of that class before it, is a
  section, whose first block always stays.

**It obeys**: what it builds shrinks with `submodel.width`, or it has an attribute `depths` (blocks
per section; it then follows `submodel.mask` and names its blocks "sections.SECTION.BLOCK....").
Then it is left alone: every tensor must be the leading corner of the whole network's.

The last `nn.Linear` holds the classes, where it has as many outputs as there are.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm

from models.extensions import imported
from models.family import Address, Family, check_mask, sectioned
from models.layers.basic import Standardise
from models.own.structure import Structure, cut, first_line, structure, with_scalers
from models.submodel import Network, Submodel

__all__ = ["own"]

REMEDY = "let its function obey submodel.width, or set method.widths = [1.0]"

VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


@dataclass(frozen=True)
class Size:
    """The one size of a network of the user's own; its depths need the network to be built, so they
    wait until asked for.
    """

    network: Network

    @property
    def depths(self) -> tuple[int, ...]:
        if obeys(self.network):
            return tuple(getattr(function_of(self.network), "depths", ()))
        return tuple(map(len, found(self.network).sections))


@lru_cache(maxsize=64)
def own(made: Network) -> Family:
    """The family of a user's function, for one network. ValueError: there is no such function."""
    function_of(made)
    return Family(
        build=build,
        presets=MappingProxyType({"": Size(made)}),
        default="",
        inputs=0,
        labelled=labelled,
        address=lambda name: address(made, name),
    )


def function_of(made: Network) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = imported(made.family)
    except ValueError as error:
        raise ValueError(f"model {error}") from error
    return function


def called(submodel: Submodel) -> nn.Module:
    """What the function returns. ValueError: it is no nn.Module, has a norm that cannot be
    measured, or asks for more than the submodel.
    """
    name = submodel.network.family
    function = function_of(submodel.network)
    needed = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind not in VARIADIC
    ]
    if len(needed) > 1:
        raise ValueError(
            f"model '{name}' needs {', '.join(needed)}; expected a function of a "
            "submodel, or of nothing"
        )
    try:
        net = function(submodel) if needed else function()
    except RuntimeError as error:
        # what the meta device says, where tensors have shapes and no values
        if "meta tensor" not in str(error):
            raise
        raise ValueError(
            f"model '{name}' computes its sizes with tensors; expected plain numbers "
            f"({first_line(error)})"
        ) from error
    if not isinstance(net, nn.Module):
        raise ValueError(f"model '{name}' returned a {type(net).__name__}; expected an nn.Module")
    if odd := [
        path
        for path, m in net.named_modules()
        if isinstance(m, _InstanceNorm) and m.track_running_stats
    ]:
        raise ValueError(
            f"model '{name}': instance norm '{odd[0]}' tracks statistics, which no pass "
            "measures anew; expected track_running_stats=False"
        )
    return net


@lru_cache(maxsize=64)
def obeys(made: Network) -> bool:
    """Whether the function follows what a submodel says by itself."""
    if hasattr(function_of(made), "depths"):
        return True
    whole, half = (sketched(made, width).state_dict() for width in (1.0, 0.5))
    return {k: v.shape for k, v in whole.items()} != {k: v.shape for k, v in half.items()}


def sketched(made: Network, width: float = 1.0) -> nn.Module:
    """What the function returns, on the meta device; torch's random state stays as it was."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return called(Submodel(made, width, ()))


@lru_cache(maxsize=64)
def found(made: Network) -> Structure:
    """How a network that does not obey is cut; one cut by half must still do its work, or it cannot
    be.
    """
    example = torch.zeros((2, *made.inputs), device="meta")
    how = structure(sketched(made), example)
    if failure(made, how, 1.0, example):
        how = replace(how, sections=())
    if not how.problem and (why := failure(made, how, 0.5, example)):
        how = replace(how, problem=f"cut to half its width, it fails ({why})")
    return how


def failure(made: Network, how: Structure, width: float, example: torch.Tensor) -> str:
    """What goes wrong when an example passes through the shallowest network of a width, in training
    or after it; "" if nothing does.
    """
    net = cut(
        sketched(made), how, width, [[1] + [0] * (len(section) - 1) for section in how.sections]
    )
    try:
        with torch.no_grad():
            for training in (True, False):
                net.train(training)(example)
    except Exception as error:  # whatever a network of a user's own raises
        return first_line(error)
    return ""


def build(submodel: Submodel) -> nn.Module:
    """The function's network, cut where it does not obey. ValueError: it cannot be narrowed, or has
    no such blocks.
    """
    made = submodel.network
    if obeys(made):
        return standardised(called(submodel), made)
    how = found(made)
    check_mask(submodel, tuple(map(len, how.sections)))
    if submodel.width < 1 and how.problem:
        raise ValueError(f"model '{made.family}' cannot be narrowed: {how.problem}; {REMEDY}")
    net = cut(called(replace(submodel, width=1.0, mask=())), how, submodel.width, submodel.mask)
    return standardised(
        with_scalers(net, how, submodel.width) if "scaler" in submodel.features else net, made
    )


def standardised(net: nn.Module, made: Network) -> nn.Module:
    return nn.Sequential(
        OrderedDict(standardise=Standardise(made.mean, made.std, len(made.inputs)), net=net)
    )


def labelled(submodel: Submodel) -> frozenset[str]:
    """The tensors of the last linear, where it gives the classes."""
    with torch.device("meta"):
        linears = [
            (name, m) for name, m in build(submodel).named_modules() if isinstance(m, nn.Linear)
        ]
    if (
        submodel.network.objective != "class"
        or not linears
        or linears[-1][1].out_features != submodel.network.outputs
    ):
        return frozenset()
    name, module = linears[-1]
    return frozenset(f"{name}.{part}" for part, _ in module.named_parameters())


def address(made: Network, name: str) -> Address | None:
    """net.layer1.2.conv.weight -> (0, 2, "conv.weight"), where layer1 is the first section."""
    name = name.removeprefix("net.")
    if obeys(made):
        return sectioned(name)
    for section, blocks in enumerate(found(made).sections):
        for index, block in enumerate(blocks):
            if name.startswith(f"{block}."):
                return section, index, name.removeprefix(f"{block}.")
    return None
