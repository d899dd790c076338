"""Attention with an axis per head: equality with PyTorch's, a narrow head, a causal mask, a
step.
"""

from __future__ import annotations

import torch
from torch import nn

from models.layers.attention import Attention, FeedForward

X = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))


def test_it_equals_pytorchs_attention():
    torch.manual_seed(0)
    ours, theirs = Attention(12, 3, 4), nn.MultiheadAttention(12, 3, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.project.weight.reshape(36, 12))
        theirs.in_proj_bias.copy_(ours.project.bias.flatten())
        theirs.out_proj.weight.copy_(ours.out.weight.reshape(12, 12))
        theirs.out_proj.bias.copy_(ours.out.bias)
        assert torch.allclose(ours(X), theirs(X, X, X)[0], atol=1e-6)


def test_the_corner_of_an_attention_keeps_the_first_features_of_every_head():
    """By hand: scores of only the kept features, divided by the root of their number."""
    torch.manual_seed(0)
    whole, half = Attention(12, 3, 4), Attention(6, 3, 2)
    with torch.no_grad():
        for name, value in half.named_parameters():
            value.copy_(whole.get_parameter(name)[tuple(slice(n) for n in value.shape)])
        x = X[..., :6]
        heads = []
        for head in range(3):
            query, key, value = (
                x @ whole.project.weight[i, head, :2, :6].T + whole.project.bias[i, head, :2]
                for i in range(3)
            )
            heads.append(
                (query @ key.transpose(1, 2) / 2**0.5).softmax(-1)
                @ value
                @ whole.out.weight[:6, head, :2].T
            )
        assert torch.allclose(half(x), sum(heads) + whole.out.bias[:6], atol=1e-6)


def test_causal_attention_ignores_later_positions():
    torch.manual_seed(0)
    later = X.clone()
    later[:, 3:] = 7
    for causal in (True, False):
        net = Attention(12, 3, 4, causal=causal).eval()
        with torch.no_grad():
            assert torch.equal(net(X)[:, :3], net(later)[:, :3]) is causal


def test_a_step_multiplies_the_whole():
    torch.manual_seed(0)
    for net in (Attention(12, 3, 4, step=True), FeedForward(12, 8, step=True)):
        with torch.no_grad():
            whole = net(X)
            net.step.fill_(0.25)
            assert torch.allclose(net(X), whole / 4)
