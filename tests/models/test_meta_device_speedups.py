"""Cached operations return what the operation would return."""

from __future__ import annotations

import pytest
import torch

from models import meta_device_speedups
from models.meta_device_speedups import ShapeCache


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Return an empty cache, which the test fills."""
    monkeypatch.setattr(meta_device_speedups, "KNOWN", made := {})
    return made


def test_the_same_shapes_give_an_equal_but_new_tensor(known):
    x, w = torch.empty(2, 3, device="meta"), torch.empty(3, 4, device="meta")
    with ShapeCache():
        a, b, c = x @ w, x @ w, x.t().contiguous().t() @ w
    assert a.shape == b.shape == c.shape == (2, 4)
    assert a.untyped_storage()._cdata != b.untyped_storage()._cdata
    assert len([key for key in known if key[0] is torch.ops.aten.mm.default]) == 2, (
        "other strides are another question"
    )


def test_views_and_in_place_operations_are_not_cached(known):
    x = torch.empty(2, 3, device="meta")
    with ShapeCache():
        views = [x.view(3, 2) for _ in range(2)]
        assert all(view.untyped_storage()._cdata == x.untyped_storage()._cdata for view in views)
        assert x.add_(1) is x
        assert x.add_(1) is x
    assert not known


def test_gradients_pass_through():
    x = torch.empty(2, 3, device="meta", requires_grad=True)
    with ShapeCache():
        ((x * 2) + (x * 2)).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (2, 3)


def test_passes_share_results_up_to_a_limit(known, monkeypatch):
    x = torch.empty(2, 3, device="meta")
    for _ in range(2):
        with ShapeCache():
            x * x
    assert len(known) == 1
    monkeypatch.setattr(meta_device_speedups, "LIMIT", 1)
    with ShapeCache():
        x + x
    assert [key[0] for key in known] == [torch.ops.aten.add.Tensor]


def test_numbers_of_two_types_give_results_of_two_types():
    x = torch.empty(2, dtype=torch.int64, device="meta")
    with ShapeCache():
        assert [(x * by).dtype for by in (2, 2.0, 2)] == [torch.int64, torch.float32, torch.int64]


def test_results_in_lists_are_cached(known):
    x = torch.empty(2, 3, 4, 4, device="meta")
    with ShapeCache():
        one, other = (torch.nn.functional.batch_norm(x, None, None, training=True) for _ in "12")
        values = [torch.max(x, 1) for _ in "12"]
    assert one.shape == other.shape
    assert [value.indices.dtype for value in values] == [torch.int64] * 2
    names = [key[0] for key in known]
    assert names.count(torch.ops.aten.native_batch_norm.default) == 1
    assert names.count(torch.ops.aten.max.dim) == 1
