"""Cached operations return what the operation would return."""

from __future__ import annotations

import torch

from models.meta_device_cache import ShapeCache


def test_the_same_shapes_give_an_equal_but_new_tensor():
    x, w = torch.empty(2, 3, device="meta"), torch.empty(3, 4, device="meta")
    with ShapeCache() as memory:
        a, b, c = x @ w, x @ w, x.t().contiguous().t() @ w
    assert a.shape == b.shape == c.shape == (2, 4)
    assert a.untyped_storage()._cdata != b.untyped_storage()._cdata
    assert len([key for key in memory.known if key[0] is torch.ops.aten.mm.default]) == 2, (
        "other strides are another question"
    )


def test_views_and_in_place_operations_are_not_cached():
    x = torch.empty(2, 3, device="meta")
    with ShapeCache() as memory:
        views = [x.view(3, 2) for _ in range(2)]
        assert all(view.untyped_storage()._cdata == x.untyped_storage()._cdata for view in views)
        assert x.add_(1) is x
        assert x.add_(1) is x
    assert not memory.known


def test_gradients_pass_through():
    x = torch.empty(2, 3, device="meta", requires_grad=True)
    with ShapeCache():
        ((x * 2) + (x * 2)).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (2, 3)
