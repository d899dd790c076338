"""DynamicFL's branches: expansion, merging and one step of training."""

from __future__ import annotations

import torch
from torch import nn

from models.layers.mergeable_branches import (
    Branch,
    join,
    merge,
    originals,
    split,
    subtract_branches,
)
from tests.support.golden import close, floats, golden


def check_dynamicfl_branch(toy):
    g = golden("dynamicfl_branch")
    kernel, values = (
        floats(g["kernel"]),
        [torch.full((1, 1, 1, 1), v) for v in g["new_branches_1x1"]],
    )
    points = [Branch("kernel", ((1, 1, 1, 1),))] * len(values)
    important = subtract_branches(points, kernel, values)
    close(important, g["expected_important_after_expand"])
    close(merge(points, important, values), g["expected_merged"])
    step_layer(kernel, points, g["one_step"])
    linears(g["linear"])
    q = g["redundant_merge"]
    close(
        merge([Branch("kernel", ((2,),))], floats(q["common"]), [floats(q["redundant"])]),
        q["expected_common"],
    )


def step_layer(kernel, points, q):
    """Step a real layer, whose output's gradient at its one place is 1 and whose input is all ones:
    the kernel's gradient is all ones.
    """
    layer = nn.Conv2d(1, 1, 3, bias=False)
    layer.weight.data = kernel.clone()
    split(layer, points, "normal", torch.Generator().manual_seed(0))
    assert len(originals(layer)) == 3
    layer(torch.ones(1, 1, 3, 3)).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=q["lr"]).step()
    join(layer)
    close(layer.weight, q["expected_equivalent_after_step"])


def linears(q):
    whole, one = floats(q["W"]), floats(q["W1"])
    copy = [Branch("kernel", ((2, 2),))]
    close(subtract_branches(copy, whole, [one]), q["expected_important"])
    close(merge(copy, subtract_branches(copy, whole, [one]), [one]), q["W"])
