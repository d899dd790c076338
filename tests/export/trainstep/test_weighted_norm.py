"""Batch norm with weights equals PyTorch's on the examples of weight 1."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from export.trainstep.weighted_norm import WeightedNorm


@pytest.mark.parametrize("shape", [(3, 2, 4, 5), (3, 2, 6), (3, 2)])
def test_outputs_gradients_and_statistics_are_those_of_the_examples_that_count(shape) -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm1d(2, momentum=0.3).double()
    plain.weight.data, plain.bias.data = torch.rand(2, 2, dtype=torch.float64)
    filled = nn.BatchNorm1d(2, momentum=0.3).double()
    filled.load_state_dict(plain.state_dict())
    plain._check_input_dim = filled._check_input_dim = lambda x: None  # any number of axes
    x = torch.randn(shape, dtype=torch.float64).requires_grad_()
    junk = torch.full((2, *shape[1:]), 7.0, dtype=torch.float64)
    longer = torch.cat([x.detach(), junk]).requires_grad_()
    g = torch.randn(shape, dtype=torch.float64)

    y = plain(x)
    wanted = torch.autograd.grad(y, [x, plain.weight, plain.bias], g)
    weights = torch.tensor([1.0, 1, 1, 0, 0], dtype=torch.float64)
    with WeightedNorm(weights):
        z = filled(longer)
    nothing = torch.zeros_like(junk)
    found = torch.autograd.grad(z, [longer, filled.weight, filled.bias], torch.cat([g, nothing]))
    torch.testing.assert_close(z[:3], y)
    torch.testing.assert_close(found[0], torch.cat([wanted[0], nothing]))
    torch.testing.assert_close(found[1:], wanted[1:])
    torch.testing.assert_close(filled.running_mean, plain.running_mean)
    torch.testing.assert_close(filled.running_var, plain.running_var)


def test_without_scale_and_statistics() -> None:
    x = torch.tensor([[1.0], [3.0], [9.0]])
    with WeightedNorm(torch.tensor([1.0, 1.0, 0.0])):
        found = F.batch_norm(x, None, None, training=True, eps=0.0)
    assert found.tolist() == [[-1.0], [1.0], [7.0]]  # mean 2, variance 1


def test_evaluation_stays_as_it_is() -> None:
    x, mean, var = torch.tensor([[1.0]]), torch.tensor([3.0]), torch.tensor([4.0])
    with WeightedNorm(torch.ones(1)):
        assert F.batch_norm(x, mean, var, eps=0.0).tolist() == [[-1.0]]
