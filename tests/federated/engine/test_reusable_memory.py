"""The memory of sums is used again, but never while a tensor is in it."""

from __future__ import annotations

import pytest

from federated.engine import reusable_memory
from federated.engine.reusable_memory import lend_memory


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    monkeypatch.setattr(reusable_memory, "LEAST", 4)
    monkeypatch.setattr(reusable_memory, "_idle", [])


def test_memory_is_used_again_once_its_last_view_is_gone():
    first = lend_memory(8).fill_(1.0)
    place, view = first.data_ptr(), first[2:4]
    del first
    assert lend_memory(8).data_ptr() != place
    assert view.tolist() == [1.0, 1.0]
    reusable_memory._idle.clear()  # of the tensor above
    del view
    again = lend_memory(8)
    assert again.data_ptr() == place


def test_only_one_memory_is_kept_and_only_for_its_size():
    several = [lend_memory(8), lend_memory(8)]
    several.clear()
    assert len(reusable_memory._idle) == 1
    assert lend_memory(5).shape == (5,)
    assert not any(one.size == 8 for one in reusable_memory._idle)


def test_an_array_of_the_tensor_keeps_the_memory():
    array = lend_memory(8).numpy()
    assert not reusable_memory._idle
    array[:] = 2.0
    assert lend_memory(8).fill_(1.0).tolist() == [1.0] * 8
    assert array.tolist() == [2.0] * 8
