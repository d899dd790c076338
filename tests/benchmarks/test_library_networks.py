"""The benchmark of other libraries' networks tries what it reports."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from torch import nn

from benchmarks.library_networks import SIDES, list_lines, try_network

pytestmark = pytest.mark.skipif(
    not (find_spec("timm") and find_spec("onnx")), reason="needs the extras networks and export"
)


def test_a_network_is_narrowed_trained_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIDES, "test_resnet", 64)
    row = try_network("timm:test_resnet", tmp_path)
    assert row.narrow < 0.3
    assert not row.width + row.training + row.export
    assert 0 < row.difference < 1e-5
    assert "yes" in list_lines([row])[1]


class Stubborn(nn.Module):
    """Neither narrowed nor exported."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(224, 16, batch_first=True), nn.Linear(16, 10)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return (
            self.head(self.body(x[:, 0])[0][:, -1]) if x.sum() > 0 else self.head(x[:, 0, 0, :16])
        )


def test_problems_are_reported(tmp_path: Path) -> None:
    row = try_network("tests.benchmarks.test_library_networks:Stubborn", tmp_path)
    assert (row.narrow, row.blocks) == (1.0, 0)
    assert "cannot be narrowed" in row.width
    assert row.depth
    assert row.export
    lines = list_lines([row])
    assert len(lines) == 4
    assert " no" in lines[1]
