"""Build the module of a submodel, and list its tensors: their shapes, their initial values, and
which of them hold the classes or belong to normalising layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import nullcontext
from functools import lru_cache

import torch
from torch import Tensor, nn

from models.families.catalogue import FAMILIES, family
from models.family import Address, Pieces
from models.layers.basic import project, scale
from models.layers.batch_norm import NORMS
from models.meta_device_speedups import WithoutValues
from models.random_state import isolate_random_state
from models.submodel import Network, Submodel

__all__ = [
    "address",
    "arrange_channels",
    "build",
    "example",
    "find_labelled",
    "full",
    "initial",
    "list_normalising",
    "parameters",
    "pieces",
    "rehearsal",
    "shapes",
    "statistics",
]

STATISTICS = ("running_mean", "running_var")
# least number of output channels of the widest convolution: with 16 or fewer, LeNet takes up to 1.4
# times as long
WIDE = 32


def full(made: Network, features: Iterable[str] = ()) -> Submodel:
    """Return the whole network as a submodel: width 1, all blocks, with a method's features."""
    depths = family(made).presets[made.preset].depths
    return Submodel(made, 1.0, tuple((1,) * depth for depth in depths), tuple(sorted(features)))


def build(submodel: Submodel, device: str = "cpu", seed: int = 0) -> nn.Module:
    """Return the module of a submodel on a device ("meta" allocates nothing), initialised from a
    seed. torch's random state does not change.

    ValueError: a mask or a feature that the family does not know.
    """
    known = family(submodel.network)
    if odd := set(submodel.features) - known.features:
        able = ", ".join(name for name, other in FAMILIES.items() if odd <= other.features)
        raise ValueError(
            f"model '{submodel.network.title}' has no {', '.join(sorted(odd))}; models "
            f"that have: {able or 'none'}"
        )
    skips = WithoutValues() if device == "meta" else nullcontext()
    with isolate_random_state(seed), torch.device(device), skips:
        net = known.build(submodel)
        if "projection" in submodel.features:
            project(net, submodel.width)
    if scalers := {"scaler", "scaler-always"} & set(submodel.features):
        scale(net, submodel.width, always="scaler-always" in scalers)
    return net


def arrange_channels(net: nn.Module, submodel: Submodel) -> nn.Module:
    """Store the weights of 2D convolutions in PyTorch's memory format `channels_last` (NHWC) if the
    widest one has at least WIDE output channels, and return the network. Outputs follow. On one
    core, a training step of a MobileNet takes 0.6 times as long, of a small ResNet 0.8 times, of a
    ResNet-18 0.95 times. Shapes, names and, to within rounding, results are the same.

    Only built-in families are arranged: other networks may call `view` on an output.
    """
    if submodel.network.family not in FAMILIES:
        return net
    layers = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    if max((layer.out_channels for layer in layers), default=0) >= WIDE:
        for layer in layers:
            # new memory: earlier views of the weight do not see its further changes
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    return net


def rehearsal(submodel: Submodel, batch: int) -> tuple[nn.Module, Tensor]:
    """Return a module and a batch of zeros to find out the shapes of its tensors."""
    device = rehearsal_device(submodel.network)
    return build(submodel, device), example(submodel.network, batch, device)


@lru_cache(maxsize=64)
def rehearsal_device(made: Network) -> str:
    """Return the device on which to find out shapes: "meta", where nothing is computed, or "cpu"
    for a user's network whose forward pass depends on values.
    """
    if ":" not in made.family:
        return "meta"
    try:
        with torch.no_grad():
            build(full(made), "meta").eval()(example(made, 2, "meta"))
    except Exception:  # a user's network can raise anything; what fails on both is reported later
        return "cpu"
    return "meta"


def example(made: Network, batch: int, device: str = "cpu") -> Tensor:
    """Return a batch of empty raw examples: zeros, and token ids if the network reads texts."""
    dtype = torch.int64 if made.tokens else torch.float32
    return torch.zeros((batch, *made.inputs), dtype=dtype, device=device)


@lru_cache(maxsize=1024)
def measure_shapes(
    submodel: Submodel,
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Return the shapes of the parameters and of the running statistics; a weight used twice counts
    once, by its first name.
    """
    net = build(submodel, "meta")
    parameters = {name: tuple(value.shape) for name, value in net.named_parameters()}
    return parameters, {
        name: tuple(value.shape) for name, value in net.named_buffers() if name.endswith(STATISTICS)
    }


def shapes(submodel: Submodel) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of a submodel, which are sent, by name."""
    return dict(measure_shapes(submodel)[0])


def parameters(submodel: Submodel) -> int:
    """Return the number of parameters of a submodel."""
    return sum(map(math.prod, measure_shapes(submodel)[0].values()))


def statistics(submodel: Submodel) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the running means and variances of a submodel, by name. They are sent
    only under `norm = "tracked"`.
    """
    return dict(measure_shapes(submodel)[1])


def initial(made: Network, seed: int, features: Iterable[str] = ()) -> dict[str, Tensor]:
    """Return the initial parameters and running statistics of the whole network."""
    whole = full(made, features)
    net = build(whole, seed=seed)
    wanted = shapes(whole) | statistics(whole)
    return {name: value.detach() for name, value in net.state_dict().items() if name in wanted}


@lru_cache(maxsize=1024)
def find_labelled(submodel: Submodel) -> frozenset[str]:
    """Return the names of the tensors whose axis 0 is the classes or values."""
    return family(submodel.network).labelled(submodel)


@lru_cache(maxsize=1024)
def list_normalising(submodel: Submodel) -> frozenset[str]:
    """Return the names of the parameters and running statistics of normalising layers: batch,
    instance, layer, group and RMS norm.
    """
    layers = {
        name: m for name, m in build(submodel, "meta").named_modules() if isinstance(m, NORMS)
    }
    known = shapes(submodel).keys() | statistics(submodel).keys()
    return frozenset(
        full_name
        for name, m in layers.items()
        for part in m.state_dict()
        if (full_name := f"{name}.{part}") in known
    )


def address(made: Network, name: str) -> Address | None:
    """Return section, block and rest of a tensor's name, or None outside the sections."""
    return family(made).address(name)


@lru_cache(maxsize=1024)
def pieces(submodel: Submodel) -> Pieces:
    """Return the kept entries of the tensors of a submodel that are not leading corners."""
    return family(submodel.network).pieces(submodel)
