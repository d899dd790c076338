"""Load a network that the user wrote, named as `module:function`, or one of another library
(`models.user_networks.library_networks`), and make smaller submodels of it.

The function returns an `nn.Module` that maps standardised floats [N, *inputs], (x - mean) / std of
the raw data, or token ids of texts [N, T], to [N, outputs]: logits, or standardised values. It
takes no argument, or the `Submodel`, which has `submodel.network.inputs` and `outputs`. There are
two ways to scale:

**It returns the whole network**, which the project then cuts.

- Width: `torch.fx` traces an example through the network and finds which axes are the same
  channels. Each such group keeps its leading `kept(width, channels)`, in every tensor, initial
  values included; inputs and outputs keep all. Supported are linear layers, convolutions (also
  transposed, grouped and depthwise ones), batch, instance, group, layer and RMS norm, PReLU,
  attention, activations, dropout, pooling, padding, elementwise operations, sums over axes,
  products of tensors, and operations that move, split or join axes; layers may be modules or
  functions. Where channels are concatenated, cut into parts, or divided into groups of a
  convolution or the heads of attention, each part keeps its own leading channels. Sizes must be
  read from a shape, be -1, or be attributes of the layer. Channels that go into anything else
  (recurrent layers, sizes written as literal numbers) stay whole, as do those of a group norm at a
  width at which its groups do not divide. The forward pass may branch on shapes but not on values.
  A device builds the whole network before it cuts it, so it needs memory for that.
- Depth: a block is a module of a class of the user's own (not a bare layer or an `nn.Sequential`).
  Blocks of one class that follow each other in an `nn.Sequential` or `nn.ModuleList` and keep the
  shape form a section, together with the block of that class before them. The first block of a
  section always stays.

**It scales itself**: the network shrinks with `submodel.width`, or the function has an attribute
    `depths` (blocks per section; the network then follows `submodel.mask` and names its blocks
    "sections.SECTION.BLOCK...."). The project does not cut it: every tensor must be the leading
    corner of the whole network's.

The last `nn.Linear` holds the classes if it has as many outputs as there are classes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm

from models.extension_lookup import import_member, list_required_parameters, locate_failure
from models.family import Address, Family, Pieces, TypicalData, check_mask, parse_address
from models.layers.basic import Standardise
from models.meta_device_speedups import WithoutValues
from models.random_state import isolate_random_state
from models.submodel import Network, Submodel
from models.user_networks.channel_groups import spans
from models.user_networks.library_networks import UnsupportedNetwork, find_builder
from models.user_networks.submodel_cutting import (
    Structure,
    add_scalers,
    cut,
    find_structure,
    first_line,
)

__all__ = ["own"]

# a function does not declare its data; a network that cannot take these is refused by name
TYPICAL = TypicalData((3, 32, 32), 10, "class")
REMEDY = (
    "train it at full width (in a configuration method.widths = [1.0]; in Python menu(network, "
    'widths=(1.0,)) or run(..., train={"widths": (1.0,)})), or let its function build the width '
    "that submodel.width states"
)


@dataclass(frozen=True)
class Size:
    """The one size of a user's network. Its depths are computed on demand, since the network must
    be built for them.
    """

    network: Network

    @property
    def depths(self) -> tuple[int, ...]:
        if scales_itself(self.network):
            return tuple(getattr(function_of(self.network), "depths", ()))
        return tuple(map(len, analyse(self.network).sections))


@lru_cache(maxsize=64)
def own(network: Network) -> Family:
    """Return the family of a user's function, for one network. ValueError: the function does not
    exist.
    """
    function_of(network)
    return Family(
        build=build,
        presets={"": Size(network)},
        default="",
        inputs=0,
        typical=TYPICAL,
        labelled=labelled_tensors,
        texts=True,
        features=frozenset({"scaler"}),
        help="a network of the user's own or of another library",
        draws=True,
        pieces=find_pieces,
        address=lambda name: address(network, name),
    )


def function_of(network: Network) -> Callable[..., Any]:
    if builder := find_builder(network.family):
        return builder
    try:
        function: Callable[..., Any] = import_member(network.family)
    except ValueError as error:
        raise UnsupportedNetwork(f"model {error}") from error
    return function


def call_function(submodel: Submodel) -> nn.Module:
    """Call the user's function and check the network that it returns.

    UnsupportedNetwork: the function fails, or requires more than the submodel; the network is not
        an nn.Module, or has a norm that cannot be measured.
    """
    name = submodel.network.title
    function = function_of(submodel.network)
    inputs = list_required_parameters(function)
    if len(inputs) > 1:
        raise UnsupportedNetwork(
            f"model '{name}' requires the arguments {', '.join(inputs)}; expected a function of "
            "at most one argument, the submodel"
        )
    try:
        net = build_anywhere(partial(function, submodel) if inputs else function)
    except UnsupportedNetwork:
        raise
    except Exception as error:  # whatever the user's function raises
        raise describe_failure(name, error) from error
    if not isinstance(net, nn.Module):
        raise UnsupportedNetwork(
            f"model '{name}' returned a value of type {type(net).__name__}; expected an nn.Module"
        )
    if odd := [
        path
        for path, m in net.named_modules()
        if isinstance(m, _InstanceNorm) and m.track_running_stats
    ]:
        raise UnsupportedNetwork(
            f"model '{name}': instance norm '{odd[0]}' tracks statistics, which calibration does "
            "not support; set track_running_stats=False"
        )
    return net


def build_anywhere(function: Callable[[], Any]) -> Any:
    """Call a function that builds a network. On the meta device, whose tensors have shapes but no
    values, a function that computes sizes with tensors fails: build its network on the CPU, and
    move it.
    """
    try:
        return function()
    except (NotImplementedError, RuntimeError) as error:
        if "meta tensor" not in str(error):
            raise
    with isolate_random_state(0), torch.device("cpu"):
        return function().to("meta")


def describe_failure(name: str, error: Exception) -> UnsupportedNetwork:
    """Describe an error that a user's function raised, with the line that raised it. The message
    names no folder, since it may leave the device.
    """
    return UnsupportedNetwork(f"model '{name}' failed {locate_failure(error)}")


@lru_cache(maxsize=64)
def scales_itself(network: Network) -> bool:
    """Return True if the function itself follows the width or mask of a submodel."""
    if hasattr(function_of(network), "depths"):
        return True
    whole, half = (build_on_meta(network, width).state_dict() for width in (1.0, 0.5))
    return {k: v.shape for k, v in whole.items()} != {k: v.shape for k, v in half.items()}


def build_on_meta(network: Network, width: float = 1.0) -> nn.Module:
    """Build the function's network on the meta device, without changing torch's random state."""
    with isolate_random_state(0), torch.device("meta"), WithoutValues():
        return call_function(Submodel(network, width, ()))


@lru_cache(maxsize=64)
def analyse(network: Network) -> Structure:
    """Find how to cut a network that does not scale itself.

    Width is disabled if the network cut to half its width fails.
    """
    dtype = torch.int64 if network.tokens else torch.float32
    example = torch.zeros((2, *network.inputs), dtype=dtype, device="meta")
    structure = find_structure(build_on_meta(network), example)
    if failure(network, structure, 1.0, example):
        structure = replace(structure, sections=())
    if not structure.problem and (why := failure(network, structure, 0.5, example)):
        structure = replace(structure, problem=f"cut to half its width, it fails ({why})")
    return structure


def failure(network: Network, structure: Structure, width: float, example: torch.Tensor) -> str:
    """Return the error that an example raises in the shallowest network of a width, in training or
    evaluation; "" if none.
    """
    net = cut(
        build_on_meta(network),
        structure,
        width,
        [[1] + [0] * (len(section) - 1) for section in structure.sections],
    )
    try:
        with torch.no_grad():
            for training in (True, False):
                net.train(training)(example)
    except Exception as error:  # a user's network may raise anything
        return first_line(error)
    return ""


def build(submodel: Submodel) -> nn.Module:
    """Build the function's network, cut unless it scales itself.

    ValueError: it cannot be narrowed, or has no such blocks.
    """
    network = submodel.network
    if scales_itself(network):
        return add_standardise(call_function(submodel), network)
    structure = analyse(network)
    check_mask(submodel, tuple(map(len, structure.sections)))
    if submodel.width < 1 and structure.problem:
        raise ValueError(
            f"model '{network.title}' cannot be narrowed: {structure.problem}; {REMEDY}"
        )
    net = cut(
        call_function(replace(submodel, width=1.0, mask=())),
        structure,
        submodel.width,
        submodel.mask,
    )
    return add_standardise(
        add_scalers(net, structure, submodel.width) if "scaler" in submodel.features else net,
        network,
    )


def add_standardise(net: nn.Module, network: Network) -> nn.Module:
    """Put a Standardise layer before a network, unless it reads texts."""
    layers = OrderedDict[str, nn.Module](net=net)
    if not network.tokens:
        layers["standardise"] = Standardise(network.mean, network.std, len(network.inputs))
        layers.move_to_end("standardise", last=False)
    return nn.Sequential(layers)


def find_pieces(submodel: Submodel) -> Pieces:
    """Return the kept entries of the tensors with an axis of several runs."""
    if submodel.width == 1 or scales_itself(submodel.network):
        return {}
    kept = {
        f"net.{name}": tuple(spans(axis, submodel.width) for axis in axes)
        for name, axes in analyse(submodel.network).axes.items()
    }
    return {name: axes for name, axes in kept.items() if any(len(runs) > 1 for runs in axes)}


def labelled_tensors(submodel: Submodel) -> frozenset[str]:
    """Return the names of the last linear layer's tensors if it outputs the classes."""
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


def address(network: Network, name: str) -> Address | None:
    """Return the address of a tensor: net.layer1.2.conv.weight -> (0, 2, "conv.weight"), if layer1
    is the first section.
    """
    name = name.removeprefix("net.")
    if scales_itself(network):
        return parse_address(name)
    for section, blocks in enumerate(analyse(network).sections):
        for index, block in enumerate(blocks):
            if name.startswith(f"{block}."):
                return section, index, name.removeprefix(f"{block}.")
    return None
