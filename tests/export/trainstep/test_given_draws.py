"""Dropout and stochastic depth take given masks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from export.trainstep.given_draws import Draw, GivenDraws


def test_masks_are_used_in_order_and_scaled() -> None:
    x = torch.ones(2, 2)
    masks = [torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[1.0], [0]])]
    with GivenDraws(masks):
        first = nn.Dropout(0.75)(x)
        second = torch.empty(2, 1).bernoulli_(0.5)
    assert first.tolist() == [[4.0, 0.0], [0.0, 4.0]]
    assert second.tolist() == [[1.0], [0.0]]


def test_without_masks_it_finds_what_is_drawn() -> None:
    x = torch.ones(2, 3, 4, 4)
    with GivenDraws() as draws:
        F.dropout(x, 0.25)
        F.dropout2d(x, 0.5)
        x.new_empty(2, 1).bernoulli_(p=0.125)
    assert draws.found == [
        Draw((2, 3, 4, 4), 0.75),
        Draw((2, 3, 1, 1), 0.5),
        Draw((2, 1), 0.125),
    ]


def test_evaluation_and_a_rate_of_0_draw_nothing() -> None:
    x = torch.ones(2)
    with GivenDraws() as draws:
        assert F.dropout(x, 0.5, training=False) is x
        assert F.dropout(x, 0.0) is x
    assert not draws.found
