"""Graphs of submodels: nodes, paths, and the tensors to generate."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from federated.methods.hypernetwork.operation_graph import (
    FAR,
    OPERATIONS,
    read_graph,
    scale_factor,
    shortest_paths,
)
from models.families.catalogue import FAMILIES
from models.named_network import network
from models.submodel import Submodel
from models.submodel_building import build, full, shapes
from tests.support.smallest_networks import small


class Forgetful(nn.Module):
    """A linear layer, and a parameter that no operation uses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.unused = nn.Parameter(torch.ones(4, 5))

    def forward(self, x):
        return self.linear(x)


class Tied(nn.Module):
    """One square weight, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 2, bias=False), nn.Linear(2, 3)

    def forward(self, x):
        return self.last(self.first(torch.relu(self.first(x))))


def count_operations(submodel):
    return Counter(OPERATIONS[index] for index in read_graph(submodel).operations)


def build_own(name):
    return full(network(f"{__name__}:{name}", (2,), 3))


def forgetful():
    return Forgetful()


def tied():
    return Tied()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_graph_has_every_tensor_of_every_family_once_with_its_shape(family):
    whole = full(small(family))
    found = read_graph(whole)
    assert {slot.name: slot.shape for slot in found.slots} == shapes(whole)
    assert len(found.slots) == len(shapes(whole))
    assert {slot.role for slot in found.slots} == {"weight", "scale", "bias"}
    assert any(slot.head for slot in found.slots)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_node_lies_on_a_path_from_the_input(family):
    found = read_graph(full(small(family)))
    assert not found.paths.triu().any(), "inputs come before what they enter"
    assert (found.paths[1:] > 0).any(1).sum() >= len(found.operations) - 2, "all but the inputs"


def test_layers_in_a_row_are_a_chain():
    """Flatten and relu are not nodes: the nodes are input, linear, linear."""
    found = read_graph(full(network("tests.support.user_models:small", (1, 8, 8), 10)))
    assert [OPERATIONS[index] for index in found.operations] == ["input", "linear", "linear"]
    assert found.paths.tolist() == [[0, 0, 0], [1, 0, 0], [2, 1, 0]]
    assert found.sizes.tolist() == [[0, 0, 0, 0], [32, 64, 0, 0], [10, 32, 0, 0]]
    assert [(slot.name, slot.node, slot.role, slot.key, slot.head) for slot in found.slots] == [
        ("net.1.weight", 1, "weight", "linear_weight_2", False),
        ("net.1.bias", 1, "bias", "linear_bias_1", False),
        ("net.3.weight", 2, "weight", "linear_weight_2", True),
        ("net.3.bias", 2, "bias", "linear_bias_1", True),
    ]


def test_a_shortcut_is_a_shorter_path():
    """From the stem's norm to the sum, the path is one step through the shortcut, and three through
    conv, norm and relu of the block.
    """
    found = read_graph(full(network("tests.support.user_models:residual", (1, 8, 8), 10)))
    names = [OPERATIONS[index] for index in found.operations]
    assert names == [
        "input",
        "conv",
        "bn",
        "conv",
        "bn",
        "sum",
        "conv",
        "bn",
        "sum",
        "max_pool",
        "linear",
    ]
    assert found.paths[5].tolist() == [3, 2, 1, 2, 1, 0, 0, 0, 0, 0, 0]


def test_operations_are_distinguished():
    grouped = [
        m
        for m in build(full(small("mobilenet")), "meta").modules()
        if isinstance(m, nn.Conv2d) and m.groups > 1
    ]
    assert count_operations(full(small("mobilenet")))["sep_conv"] == len(grouped) > 0
    assert count_operations(full(small("vit")))["pos_enc"] == 1
    assert count_operations(full(small("vit")))["msa"] > 0
    assert count_operations(full(small("transformer")))["embedding"] == 1
    assert count_operations(full(small("densenet")))["concat"] > 0
    assert count_operations(full(small("efficientnet")))["cse"] > 0
    assert count_operations(full(small("preresnet"))) == {
        "input": 1,
        "conv": 27,
        "bn": 25,
        "sum": 12,
        "glob_avg": 1,
        "linear": 1,
    }


def test_depth_shows_in_the_graph_and_width_in_the_sizes():
    net = small("preresnet")
    whole, narrow, shallow = (
        Submodel(net, w, ((1, d, d, d),) * 3) for w, d in ((1.0, 1), (0.5, 1), (1.0, 0))
    )
    assert torch.equal(read_graph(whole).paths, read_graph(narrow).paths)
    assert not torch.equal(read_graph(whole).sizes, read_graph(narrow).sizes)
    assert len(read_graph(shallow).operations) < len(read_graph(whole).operations)


def test_an_exit_belongs_to_the_graph():
    whole = full(network("resnet-small", (1, 8, 8), 10))
    first = replace(whole, mask=(whole.mask[0], (0, 0), (0, 0)), features=("exits-adapter",))
    assert {slot.name for slot in read_graph(first).slots if slot.head} == {
        "exits.0.linear.weight",
        "exits.0.linear.bias",
    }


def test_the_owner_of_a_submodel_does_not_change_the_graph():
    whole = full(small("mlp"))
    assert read_graph(replace(whole, owner="a7")) is read_graph(whole)


def test_an_unused_tensor_has_its_own_node():
    found = read_graph(build_own("forgetful"))
    unused = next(slot for slot in found.slots if slot.name.endswith("unused"))
    assert OPERATIONS[found.operations[unused.node]] == "other"
    assert not found.paths[unused.node].any()


def test_a_tensor_that_is_used_twice_belongs_to_its_first_use():
    found = read_graph(build_own("tied"))
    assert [OPERATIONS[index] for index in found.operations] == [
        "input",
        "linear",
        "linear",
        "linear",
    ]
    assert next(slot.node for slot in found.slots if "first" in slot.name) == 1


def test_paths_have_a_maximum_length():
    chain = shortest_paths([[], *([index] for index in range(FAR + 1))])
    assert chain[FAR, 0] == FAR
    assert chain[FAR + 1, 0] == 0
    assert chain[FAR + 1, 1] == FAR


@pytest.mark.parametrize(
    ("shape", "outputs", "expected"),
    [
        ((2, 4, 3, 3), 1, math.sqrt(2 / 36)),
        ((5, 8), 1, 0.5),
        ((8, 1, 3, 3), 1, 1 / 3),  # depthwise
        ((4, 4, 1, 3), 1, math.sqrt(1 / 12)),  # 1 x k
        ((4, 4, 3, 1), 1, math.sqrt(2 / 12)),
        # attention: query, key and value of two heads of four features, from eight
        ((3, 2, 4, 8), 3, 0.5),
    ],
)
def test_the_factor_of_a_weight(shape, outputs, expected):
    assert scale_factor(shape, outputs) == pytest.approx(expected)


def test_the_factor_of_attention_counts_input_features():
    """In [3, heads, features, D] and [D, heads, features], the leading axes are outputs, as many as
    the bias has.
    """
    slots = {slot.name: slot for slot in read_graph(full(small("vit"))).slots}
    project, out = (slots[f"sections.0.0.attention.{name}.weight"] for name in ("project", "out"))
    assert project.factor == pytest.approx(math.sqrt(2 / project.shape[3]))
    assert out.factor == pytest.approx(math.sqrt(2 / (out.shape[1] * out.shape[2])))
