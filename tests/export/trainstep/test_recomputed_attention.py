"""Attention that computes its probabilities again equals PyTorch's, and a graph keeps it so."""

from __future__ import annotations

import onnx
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from export.trainstep import recomputed_attention
from export.trainstep.calibration_and_evaluation import make_evaluation
from export.trainstep.graph_export import export_graph
from export.trainstep.recomputed_attention import Attend, RecomputedAttention, split
from export.trainstep.training_step import make_step
from federated.task import Recipe
from models.submodel_building import full
from tests.support.smallest_networks import small


def draw(*shape: int) -> Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def attend(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The calls of the recomputed attention."""
    calls, apply = list[object](), Attend.apply

    def count(*args: object) -> object:
        calls.append(args)
        return apply(*args)

    monkeypatch.setattr(Attend, "apply", count)
    return calls


@pytest.mark.parametrize("block", [2**20, 2 * 3 * 5 * 5, 1])  # of all, two or one of the examples
@pytest.mark.parametrize("more", [{}, {"is_causal": True}, {"scale": 0.7}, {"scale": 0.0}])
def test_outputs_and_gradients_are_pytorchs(
    more, block: int, attend: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recomputed_attention, "BLOCK", block)
    q, k, v = draw(3, 3, 5, 4), draw(3, 3, 5, 4), draw(3, 3, 5, 6)
    wanted = F.scaled_dot_product_attention(q, k, v, **more)
    with RecomputedAttention():
        found = F.scaled_dot_product_attention(q, k, v, **more)
    assert len(attend) == 1
    torch.testing.assert_close(found, wanted)
    g = torch.randn_like(wanted)
    theirs, ours = (torch.autograd.grad(one, [q, k, v], g) for one in (wanted, found))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("examples", "places", "wanted"), [(4, 512, 4), (64, 512, 16), (3, 8, 1)])
def test_the_number_of_blocks_is_limited(examples: int, places: int, wanted: int) -> None:
    """Probabilities of 12 heads and 512 places have 3 million numbers for each example."""
    q = torch.empty(examples, 12, places, 1, device="meta")
    blocks = split(q, q, q)
    assert len(blocks) == wanted
    assert all(
        sum(len(one) for one in several) == examples for several in zip(*blocks, strict=True)
    )


def test_attention_with_a_mask_or_broadcast_values_is_left_to_pytorch(
    attend: list[object],
) -> None:
    q, k, v = draw(2, 3, 5, 4), draw(2, 3, 5, 4), draw(2, 3, 5, 6)
    hidden = torch.zeros(5, 5, dtype=torch.bool)  # whose probabilities are 0
    with RecomputedAttention():
        assert not F.scaled_dot_product_attention(q, k, v, hidden).any()
        F.scaled_dot_product_attention(q, k, v[:1, :1])
    assert not attend


@pytest.mark.slow
def test_a_graph_computes_the_probabilities_twice() -> None:
    """Otherwise it would keep them."""
    submodel, counts = full(small("vit")), list[int]()
    for function in (make_evaluation(submodel, 3), make_step(submodel, Recipe(batch=2), 3)):
        nodes = onnx.load_from_string(export_graph(function)).graph.node
        counts.append(sum(node.op_type == "Softmax" for node in nodes))
    assert counts[0] > 0
    assert counts[1] == 2 * counts[0] + 1, "and the probabilities of the classes, in the loss"
