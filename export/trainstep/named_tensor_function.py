"""A function of named tensors that becomes a graph, and the network within it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from export.trainstep.given_draws import Draw
from federated.device.trainers.graph_names import PARAMETER
from models.layers.early_exits import run_exits
from models.submodel import Network, Submodel
from models.submodel_building import build, example, statistics

__all__ = ["Answers", "GraphFunction", "make_examples"]


@dataclass(frozen=True)
class GraphFunction:
    """A function to export.

    kind: step, calibration or evaluation
    submodel: the network
    compute: inputs by name -> outputs by name
    inputs: an example of each input, by name
    draws: masks among the inputs, in order
    """

    kind: str
    submodel: Submodel
    compute: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    inputs: Mapping[str, Tensor]
    draws: Sequence[Draw] = ()

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"{self.kind} of {self.submodel.network.title} {self.submodel.name}"

    @property
    def properties(self) -> dict[str, str]:
        """Return the properties of the graph."""
        return {
            "kind": self.kind,
            "submodel": self.submodel.name,
            "batch": str(len(self.inputs["x"])),
            "draws": json.dumps([[one.shape, one.keep] for one in self.draws]),
        }


class Answers(nn.Module):
    """The outputs of every exit of a submodel, shallow first, as a function of its tensors.

    statistics: names of its running statistics
    """

    def __init__(self, net: nn.Module, submodel: Submodel) -> None:
        super().__init__()
        self.net, self.submodel = net, submodel
        self.statistics = tuple(statistics(submodel))  # it builds a network: not within a trace

    @classmethod
    def of(cls, submodel: Submodel) -> Answers:
        """Return those of the real network, whose constants become a part of the graph."""
        return cls(build(submodel), submodel)

    def forward(self, x: Tensor) -> list[Tensor]:
        return run_exits(self.net, self.submodel, x)

    def answer(self, tensors: Mapping[str, Tensor], x: Tensor) -> list[Tensor]:
        """Return the outputs for raw examples with these parameters and buffers. Buffers change in
        place.
        """
        tokens = not x.dtype.is_floating_point
        named = {f"net.{name}": value for name, value in tensors.items()}
        return functional_call(self, named, (x.long() if tokens else x,))  # type: ignore[no-any-return]

    def parameters_from(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the parameters among the inputs of a graph, by local name."""
        return {name: given[PARAMETER + name] for name, _ in self.net.named_parameters()}

    def copy_buffers(self) -> dict[str, Tensor]:
        """Return copies of all buffers, which batch norm changes in place. A trace knows them as
        tensors of its own.
        """
        lift = torch.ops.aten.lift_fresh
        return {name: lift(value).clone() for name, value in self.net.named_buffers()}


def make_examples(net: nn.Module, network: Network, batch: int) -> dict[str, Tensor]:
    """Return an example of each input that every graph has."""
    x = example(network, batch)
    return {
        "x": x if x.dtype.is_floating_point else x.to(torch.int32),
        "weights": torch.ones(batch),
        **{PARAMETER + name: value.detach() for name, value in net.named_parameters()},
    }
