"""The benchmark of training graphs: a measured network, and its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.training_graphs.command import Row, list_lines, measure

ROW = Row("mlp-small", "w1-d2", error=1e-6, torch_error=1e-7, graph_ms=3.0, torch_ms=2.0)


@pytest.mark.slow
def test_a_network_is_compared_with_pytorch(tmp_path: Path) -> None:
    row = measure("mlp-small", 3, 4, tmp_path)
    assert row.met
    assert 0 < row.error < 1e-4
    assert 0 < row.graph_peak < row.torch_peak
    assert min(row.graph_ms, row.torch_ms, row.export_s, row.graph_ready_s) > 0


@pytest.mark.slow
def test_a_network_that_cannot_be_exported_gives_the_reason(tmp_path: Path) -> None:
    row = measure("tests.support.user_networks:Growing", 3, 4, tmp_path)
    assert "aten.convolution_backward has no translation" in row.problem
    assert not row.met


def test_an_error_above_the_limit_passes_only_where_pytorch_has_one_like_it() -> None:
    assert ROW.met
    assert not replace(ROW, error=1e-3).met
    assert replace(ROW, error=1e-3, torch_error=6e-4).met


def test_the_table_shows_ratios_and_problems() -> None:
    rows = [replace(ROW, graph_peak=50, torch_peak=200), Row("own:net", "w1", problem="too new")]
    _, first, second = list_lines(rows)
    assert "1.50x" in first
    assert "0.25x" in first
    assert second.split(maxsplit=1) == ["own:net", "too new"]
