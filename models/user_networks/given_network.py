"""Give a name to a network that a Python program passed as an `nn.Module`."""

from __future__ import annotations

import contextlib
import copy
import hashlib

import torch
from torch import nn

from models.given_objects import (
    OBJECTS,
    describe_name,
    digest,
    give,
    replace_given,
    spell_code,
    strip_module,
)

__all__ = ["count_outputs", "give_network", "return_network"]


class GivenNetwork:
    """A function that returns a copy of a module, as the functions of
    `models.user_networks.user_network`
    do: with its weights, or on the meta device without values.
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = copy.deepcopy(net).cpu()
        self.empty = copy.deepcopy(self.net).to("meta")

    def __call__(self) -> nn.Module:
        here = torch.empty(0).device  # that of the context, `with torch.device(...)`
        return copy.deepcopy(self.empty if here.type == "meta" else self.net)


def give_network(net: nn.Module) -> str:
    """Register a copy of a module, and return its name, which is made of its class, its structure
    and its weights: the name of an equal module is the same in another process.
    """
    label = f"{type(net).__name__}_{digest_structure(net)}_{digest_weights(net)}"
    return give(label, GivenNetwork(net))


def count_outputs(name: str, inputs: tuple[int, ...]) -> int:
    """Return the number of outputs of a given network for examples of this shape; 0 for another
    name. If the network fails, return the least number: building it then reports the reason.

    ValueError: it returns something else than one row of outputs per example.
    """
    net = OBJECTS.get(strip_module(name))
    if not isinstance(net, GivenNetwork):
        return 0
    for module, device in ((net.empty, "meta"), (net.net, "cpu")):
        # a user's network can raise anything, on the meta device also because it reads values
        with torch.no_grad(), contextlib.suppress(Exception):
            out = copy.deepcopy(module).eval()(torch.zeros((2, *inputs), device=device))
            break
    else:
        return 2
    if isinstance(out, torch.Tensor) and out.ndim == 2:
        return out.shape[1]
    found = f"shape {list(out.shape)}" if hasattr(out, "shape") else f"type {type(out).__name__}"
    raise ValueError(
        f"{describe_name(name)}: for 2 examples of shape {inputs}, the network returned an output "
        f"of {found}; expected one tensor [2, outputs]: return the logits alone"
    )


def return_network(name: str, net: nn.Module) -> None:
    """Register a module again under the name of an earlier process. The weights may differ.

    ValueError: its structure differs from that of the named module.
    """
    expected, found = name.split("_")[-2], digest_structure(net)
    if expected != found:
        raise ValueError(
            f"model: expected the {describe_name(name)} that the run was "
            f"started with, found a {type(net).__name__} of another structure: pass a module made "
            "by the same code"
        )
    replace_given(name, GivenNetwork(net))


def digest_structure(net: nn.Module) -> str:
    """Return a digest of the layers, the shapes and the code of the forward passes."""
    shapes = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    kinds = dict.fromkeys(type(module) for module in net.modules())
    code = [
        (kind.__qualname__, spell_code(forward))
        for kind in kinds
        if (forward := getattr(kind.forward, "__code__", None))
    ]
    return digest(f"{net!r}\n{shapes}\n{code}".encode())


def digest_weights(net: nn.Module) -> str:
    tensors = net.state_dict().values()
    found = hashlib.sha256()
    for value in tensors:
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()[:8]
