"""Gradients compute the activations after a norm again, from what the norm keeps anyway."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F  # noqa: N812

from export.trainstep.graph_export import export_graph
from export.trainstep.named_tensor_function import GraphFunction
from export.trainstep.recomputed_activations import recompute_activations
from models.submodel_building import full
from tests.support.smallest_networks import small

SIZE, CHANNELS = 512, 32  # 2^14 numbers, the least that is not kept
LOSS = 1  # index among the results

Network = Callable[[Tensor, Tensor, Tensor], Tensor]


def make_step(network: Network) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
    """Return a function with the gradients of a scale and a matrix, and the loss."""

    def step(x: Tensor, scale: Tensor, matrix: Tensor) -> tuple[Tensor, ...]:
        scale, matrix = (one.detach().requires_grad_() for one in (scale, matrix))
        with torch.enable_grad():
            loss = network(x, scale, matrix).square().mean()
            first, second = torch.autograd.grad(loss, [scale, matrix])
        return first, loss.detach(), second

    return step


def draw_inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(SIZE, CHANNELS), torch.randn(CHANNELS), torch.randn(CHANNELS, 4)


def trace(network: Network) -> tuple[GraphModule, set[str]]:
    """Return a step that computes activations again, and the forward pass's large results that
    its gradients use.
    """
    given = draw_inputs()
    traced = make_fx(make_step(network), tracing_mode="fake")(*given)
    wanted = traced(*given)
    recompute_activations(traced, LOSS)
    traced.graph.lint()
    for ours, theirs in zip(traced(*given), wanted, strict=True):
        assert torch.equal(ours, theirs)
    nodes = list(traced.graph.nodes)
    end = nodes.index(nodes[-1].args[0][LOSS])
    used = {one for node in nodes[end + 1 : -1] for one in node.all_input_nodes}
    kept = {node for node in used & set(nodes[:end]) if node.meta["val"].numel() >= SIZE * CHANNELS}
    return traced, {node.name for node in kept}


def normalise(x: Tensor, scale: Tensor) -> Tensor:
    return (x - x.mean(0)) * scale + 0.5


@pytest.mark.parametrize("activate", [F.relu, F.silu, torch.sigmoid])
def test_only_what_the_norm_keeps_is_kept(activate: Callable[[Tensor], Tensor]) -> None:
    _, kept = trace(lambda x, scale, matrix: activate(normalise(x, scale)) @ matrix)
    assert kept == {"sub"}


def test_what_saves_no_memory_is_not_repeated() -> None:
    """No gradient needs the sum before the activation."""
    traced, kept = trace(lambda x, scale, matrix: F.relu(x @ matrix @ matrix.T + scale) @ matrix)
    assert "relu" in kept
    assert sum(node.target is torch.ops.aten.relu.default for node in traced.graph.nodes) == 1


@pytest.mark.slow
def test_a_graph_computes_the_activation_twice() -> None:
    """Otherwise it would keep it."""
    step = make_step(lambda x, scale, matrix: normalise(x, scale).sigmoid() @ matrix)
    names = "x", "scale", "matrix"
    function = GraphFunction(
        "toy",
        full(small("mlp")),
        lambda given: dict(
            zip(("g", "loss", "h"), step(*(given[name] for name in names)), strict=True)
        ),
        dict(zip(names, draw_inputs(), strict=True)),
    )
    nodes = onnx.load_from_string(export_graph(function)).graph.node
    assert sum(node.op_type == "Sigmoid" for node in nodes) == 2
