"""The benchmark of training graphs: a measured network, and how exact it must be."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.training_graphs.command import Deviation, compare_steps, measure
from federated.errors import ExportError


@pytest.mark.slow
def test_a_network_is_compared_with_pytorch(tmp_path: Path) -> None:
    said = list[str]()
    error, losses, time, memory, ready = measure("mlp-small", 3, 4, tmp_path, said.append)
    assert 0 < error.ours < 1e-4
    assert losses.ours > 0
    assert memory.ratio is not None
    assert memory.ratio > 1
    assert min(row.ours for row in (time, memory, ready)) > 0
    assert "mlp-small: exported" in said[0]


@pytest.mark.slow
def test_a_network_that_cannot_be_exported_gives_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"aten.convolution_backward has no translation"):
        measure("tests.support.user_networks:Growing", 3, 4, tmp_path, lambda line: None)


def test_an_error_above_the_limit_passes_only_where_pytorch_has_one_like_it() -> None:
    assert compare_steps("mlp", Deviation(1e-6, 0.0), Deviation(1e-7, 0.0)).met
    assert compare_steps("mlp", Deviation(1e-3, 0.0), Deviation(6e-4, 0.0)).met
    with pytest.raises(ExportError, match=r"differs by 1.0e-03"):
        compare_steps("mlp", Deviation(1e-3, 0.0), Deviation(1e-7, 0.0))
