"""What a run is called and how moments of devices add up, before any agent is asked for anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.config import load
from coordinator.start import free_name, pooled
from federated.wire import topics


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("digits", "fedfa-digits"),
        ("a b/my pictures.zip", "fedfa-my-pictures"),
        ("prices (1).csv:price in €", "fedfa-prices-1"),
        ("my.module:function", "fedfa-my"),
        ("x" * 99 + ".npz", "fedfa-" + "x" * 42),
    ],
)
def test_a_run_named_after_any_data_is_a_level_of_topics(tmp_path: Path, data: str, name: str) -> None:
    found = free_name(load(None, {}, [("data.name", data)]), tmp_path)
    assert found == name
    assert topics.run(found)


def test_moments_of_a_large_mean_are_pooled_to_all_digits() -> None:
    """Of 0 and 2, and of 4 and 4 (whose deviation counts as 1), all 1e9 up: mean 2.5; (1 + 2.25 + 1 + 2.25) / 2."""
    mean, std = pooled([((1e9 + 1,), (1.0,), 2), ((1e9 + 4,), (1.0,), 2)])
    assert mean == (1e9 + 2.5,)
    assert std == (pytest.approx(3.25**0.5),)


def test_the_moments_of_one_device_are_its_own() -> None:
    assert pooled([((0.0, 3e8), (1e-9, 2.0), 7)]) == ((0.0, 3e8), (pytest.approx(1e-9), 2.0))
