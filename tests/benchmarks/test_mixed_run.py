"""The benchmark of a run with and without PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.comparison.rows import Failure
from benchmarks.training_graphs.mixed_run import FREE, TORCH, compare_means, measure_run, write_half
from federated.data.custom_arrays import read_npz
from federated.data.dataset import Dataset
from tests.support.python_without_torch import write_python


def make_images(count: int) -> Dataset:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (count, 1, 28, 28), np.uint8)
    y = np.arange(count) % 10
    return Dataset("images", x, y, x[:20], y[:20], 10)


def test_means_that_differ_by_more_than_a_point_fail() -> None:
    (near,) = compare_means([{FREE: 0.80, TORCH: 0.82}, {FREE: 0.81, TORCH: 0.80}])
    assert near.met
    far, failure = compare_means([{FREE: 0.80, TORCH: 0.82}, {FREE: 0.81, TORCH: 0.82}])
    assert not far.met
    assert isinstance(failure, Failure)
    assert "80.50%, and of 82.00%" in failure.reason


def test_the_agents_train_on_different_images_and_score_the_same(tmp_path: Path) -> None:
    whole = make_images(100)
    for index in (0, 1):
        write_half(whole, index, 7, tmp_path / f"{index}.npz")
    one, other = (read_npz(tmp_path / f"{index}.npz") for index in (0, 1))
    images = {image.tobytes() for half in (one, other) for image in half.x}
    assert (len(one.x), len(other.x), len(images)) == (50, 50, 100)
    assert np.array_equal(one.x_held, whole.x_held)
    assert np.array_equal(other.y_held, whole.y_held)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.broker
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("forked_commands")
def test_both_agents_train_in_a_run(tmp_path: Path) -> None:
    found = measure_run(make_images(80), write_python(tmp_path), 1, 0, tmp_path)
    assert found.keys() == {FREE, TORCH}
    assert all(0 <= accuracy <= 1 for accuracy in found.values())
