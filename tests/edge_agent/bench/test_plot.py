"""Plots of benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.bench.report import Report, Row, take_fingerprint
from edge_agent.device.process_limits import Limits

pytest.importorskip("matplotlib")


def test_plot_has_a_line_per_runtime_and_threads(tmp_path: Path) -> None:
    from edge_agent.bench.plot import draw

    rows = [
        Row("preresnet-18", name, runtime, "cpu", threads, macs=macs, p90_ms=macs / 1e7 / threads)
        for name, macs in (("w0.25-d2", 35_000_000), ("w1-d2", 555_000_000))
        for runtime in ("torch", "onnx")
        for threads in (1, 2)
    ]
    made = Report(
        take_fingerprint(Limits()),
        (*rows, Row("preresnet-18", "w2", "torch", "cpu", 1, macs=10, error="it died")),
        "",
    )
    assert draw(made, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert all(
        f"<!-- {text} -->" in drawn
        for text in ("torch, 1 thread", "onnx, 2 threads", "w0.25-d2", "w1-d2", "latency p90, ms")
    )
    assert "<!-- w2 -->" not in drawn


def test_rows_without_macs_give_no_plot(tmp_path: Path) -> None:
    from edge_agent.bench.plot import draw

    assert not draw(
        Report(take_fingerprint(Limits()), (Row("", "f.onnx", "onnx", "cpu", 1, p90_ms=1.0),), ""),
        tmp_path / "a.png",
    )
    assert not list(tmp_path.iterdir())
