"""The table in the terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from edge_agent.bench.report import Ratio, Report, Row, take_fingerprint
from edge_agent.bench.terminal_table import (
    list_footnotes,
    make_ratio_table,
    make_table,
    make_title,
    summarise,
)
from edge_agent.device.process_limits import Limits

FULL = {
    "parameters": 11_172_170,
    "macs": 555_422_720,
    "file_bytes": 44_700_000,
    "load_ms": 104.2,
    "least_ms": 10.0,
    "p50_ms": 10.25,
    "p90_ms": 12.5,
    "p95_ms": 13.25,
    "p99_ms": 1014.4,
    "predicted_ms": 11.5,
    "batch": 32,
    "step_least_ms": 812.0,
    "step_median_ms": 823.0,
    "predicted_step_ms": 801.0,
    "base_bytes": 210_000_000,
    "peak_bytes": 320_000_000,
    "training_peak_bytes": 720_000_000,
    "joules": 0.125,
    "celsius_before": 51.2,
    "celsius_after": 63.8,
    "mhz_before": 1800.0,
    "mhz_after": 1500.0,
}


def row(runtime: str = "torch", threads: int = 1, **values: Any) -> Row:
    return Row("preresnet-18", "w1-d2.2.2.2", runtime, "cpu", threads, **values)


def render_table(*rows: Row, width: int = 120) -> str:
    screen = Console(width=width, file=io.StringIO())
    screen.print(make_table(Report(take_fingerprint(Limits()), rows, ""), width))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


@pytest.mark.parametrize("width", [100, 120, 200])
def test_table_fits_the_terminal_and_keeps_key_columns(width: int) -> None:
    found = render_table(row(**FULL), row("onnx-int8-u8s8", **FULL), width=width)
    lines = found.splitlines()
    assert len(lines) == 4  # a head of two, a line per row
    assert max(map(len, lines)) <= width
    assert all(word in found for word in ("w1-d2.2.2.2", "onnx-int8-u8s8", "12.5", "812"))


def test_wide_terminal_shows_all_columns() -> None:
    found = render_table(row(**FULL), width=250)
    for word in (
        "11.2 M",
        "555 M",
        "104",
        "10.2",
        "1014",
        "11.5",
        "823",
        "801",
        "320",
        "720",
        "125",
        "51-64",
        "1800-1500",
    ):
        assert word in found


def test_empty_columns_are_left_out() -> None:
    found = render_table(row(p90_ms=0.05))
    assert "0.050" in found
    assert all(word not in found for word in ("step", "°C", "mJ", "threads", "predicted"))
    assert "threads" in render_table(row(p90_ms=1.0), row(threads=2, p90_ms=1.0))


def test_title_names_network_and_shared_threads() -> None:
    one, two = row(p90_ms=1.0), row(threads=2, p90_ms=1.0)
    assert (
        make_title(Report(take_fingerprint(Limits()), (one,), ""))
        == "preresnet-18, 1 thread, one example at a time"
    )
    assert (
        make_title(Report(take_fingerprint(Limits()), (one, two), ""))
        == "preresnet-18, one example at a time"
    )


def test_stable_frequency_is_hidden() -> None:
    assert "MHz" not in render_table(row(p90_ms=1.0, mhz_before=1500.0, mhz_after=1490.0))


def test_unreliable_rows_are_flagged_and_explained() -> None:
    rows = (
        row(p90_ms=1.0, loaded=True, busy=0.35),
        row(p90_ms=1.0, throttled=True),
        row("onnx", error="killed by the system"),
    )
    found = render_table(*rows)
    assert [word in found for word in ("loaded", "throttled", "failed")] == [True] * 3
    said = "\n".join(
        list_footnotes(Report(take_fingerprint(Limits(memory=10**8)), rows, "", ("w0.5",)))
    )
    for text in (
        "up to 35% of the processors",
        "heat or a weak power supply",
        "failed: w1-d2.2.2.2 onnx, threads 1: killed",
        "limited to 100 MB",
        "predicted: from the times of w0.5",
    ):
        assert text in said


def test_row_is_summarised_in_a_line() -> None:
    assert (
        summarise(row(p90_ms=1.0, step_least_ms=20.0, loaded=True))
        == "p90 1.00 ms, step 20 ms (loaded)"
    )
    assert summarise(row(error="it died")) == "failed: it died"


@pytest.mark.parametrize(
    ("p90", "step", "verdict"),
    [
        (1.2, 0.5, "slower"),
        (1.0, None, ""),
        (0.8, None, "quicker"),
        (0.8, 1.0, ""),
        (None, None, ""),
    ],
)
def test_a_ratio_has_a_verdict(p90: float | None, step: float | None, verdict: str) -> None:
    screen = Console(width=100, file=io.StringIO())
    screen.print(make_ratio_table([Ratio(row(), p90, step)]))
    assert isinstance(screen.file, io.StringIO)
    assert (
        screen.file.getvalue().splitlines()[1].split()[3:]
        == [f"{v:.2f}" if v else "-" for v in (p90, step)] + verdict.split()
    )
