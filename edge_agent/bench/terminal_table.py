"""Print a benchmark in a terminal: the table, its footnotes, and the comparison with an older
report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from edge_agent.bench.report import Ratio, Report, Row
from federated.install_command import NAME
from federated.safe_terminal_table import SafeTable

__all__ = [
    "format_count",
    "list_footnotes",
    "make_ratio_table",
    "make_table",
    "make_title",
    "open_console",
    "summarise",
]

WIDTH = 120  # characters, if the terminal's width is unknown
FREQUENCY_DROP = 0.1  # smallest drop of the frequency to show, as a fraction
NOISE = 0.05  # normal variation of times between runs on a quiet machine, as a fraction


@dataclass(frozen=True)
class Column:
    """One column; a column without values is left out.

    head: two lines, name and unit
    rank: priority; if the table is too wide, the highest rank is dropped first
    cell: text of a row's cell
    right: align right
    """

    head: str
    rank: int
    cell: Callable[[Row], str]
    right: bool = True


THREADS = Column("threads\n", 0, lambda r: str(r.threads))
COLUMNS = (
    Column("submodel\n", 0, lambda r: r.submodel, right=False),
    Column("parameters\n", 3, lambda r: format_count(r.parameters)),
    Column("MACs\n", 1, lambda r: format_count(r.macs)),
    Column("runtime\n", 0, lambda r: r.runtime, right=False),
    THREADS,
    Column("file\nMB", 9, lambda r: _format_megabytes(r.file_bytes)),
    Column("load\nms", 5, lambda r: _format_ms(r.load_ms)),
    Column("p50\nms", 2, lambda r: _format_ms(r.p50_ms)),
    Column("predicted\nms", 3, lambda r: _format_ms(r.predicted_ms)),
    Column("p90\nms", 0, lambda r: _format_ms(r.p90_ms)),
    Column("p95\nms", 10, lambda r: _format_ms(r.p95_ms)),
    Column("p99\nms", 4, lambda r: _format_ms(r.p99_ms)),
    Column("step\nms", 0, lambda r: _format_ms(r.step_least_ms)),
    Column("predicted\nms", 2, lambda r: _format_ms(r.predicted_step_ms)),
    Column("median\nms", 8, lambda r: _format_ms(r.step_median_ms)),
    Column("peak\nMB", 1, lambda r: _format_megabytes(r.peak_bytes)),
    Column("training\nMB", 6, lambda r: _format_megabytes(r.training_peak_bytes)),
    Column("mJ\n", 7, lambda r: "" if r.joules is None else _format_ms(r.joules * 1000)),
    Column(
        "°C\n",
        6,
        lambda r: (
            ""
            if r.celsius_after is None
            else f"{r.celsius_before or r.celsius_after:.0f}-{r.celsius_after:.0f}"
        ),
    ),
    Column("MHz\n", 6, lambda r: _format_frequency_drop(r.mhz_before, r.mhz_after)),
    Column(
        "flags\n",
        0,
        lambda r: " ".join(
            word
            for word, yes in (("loaded", r.loaded), ("throttled", r.throttled), ("failed", r.error))
            if yes
        ),
        False,
    ),
)


def open_console(*, error: bool) -> Console:
    """Return a console on standard output or standard error, wide enough for the table if it is
    not a terminal.
    """
    found = Console(stderr=error)
    return (
        found
        if found.is_terminal or "COLUMNS" in os.environ
        else Console(stderr=error, width=WIDTH)
    )


def make_table(report: Report, width: int) -> Table:
    """Return the rows with as many columns as fit into `width` characters; files contain all
    columns.
    """
    rows, threads = report.rows, {row.threads for row in report.rows}
    columns = [
        c
        for c in COLUMNS
        if any(c.cell(row) for row in rows) and (c is not THREADS or len(threads) > 1)
    ]
    while sum(_measure_width(c, rows) + 1 for c in columns) > width and max(
        c.rank for c in columns
    ):
        columns.remove(max(columns, key=lambda c: c.rank))
    made = SafeTable(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        made.add_column(column.head, no_wrap=True, justify="right" if column.right else "left")
    for row in rows:
        made.add_row(*(column.cell(row) for column in columns))
    return made


def make_title(report: Report) -> str:
    """Return the table's title."""
    networks = list(dict.fromkeys(row.network for row in report.rows if row.network))
    threads = {row.threads for row in report.rows}
    few = [f"{count} thread{'s' * (count > 1)}" for count in threads] if len(threads) == 1 else []
    return ", ".join([*networks, *few, "one example at a time"])


def list_footnotes(report: Report) -> list[str]:
    """Return the lines below the table: the machine, failed rows with reasons, and rows not to
    be trusted.
    """
    about, rows = report.fingerprint, report.rows
    board = f"{about.board.model}, " if about.board.model else ""
    limits = f", limited to {about.limits}" if about.limits else ""
    found = [
        f"{board}{about.processor}, {about.cpus:g} cpus, {about.memory / 2**30:.1f} "
        f"GiB{limits}; {_format_versions(about.versions)}"
    ]
    if batch := next((row.batch for row in rows if row.batch and row.step_least_ms), None):
        found.append(f"step: the fastest training step on {batch} examples")
    if any(row.loaded for row in rows):
        worst = max(row.busy or 0.0 for row in rows)
        found.append(
            f"loaded: other programs used up to {worst:.0%} of the processors; measure again "
            "when nothing else runs"
        )
    if any(row.throttled for row in rows):
        found.append("throttled: heat or a weak power supply slowed the processor down")
    if report.probes:
        found.append(
            f"predicted: from the times of {', '.join(report.probes)}, which have no predictions"
        )
    return found + [
        f"failed: {row.submodel} {row.runtime}, threads {row.threads}: {row.error}"
        for row in rows
        if row.error
    ]


def summarise(row: Row) -> str:
    """Return a finished row in a few words."""
    if row.error:
        return f"failed: {row.error}"
    step = f", step {_format_ms(row.step_least_ms)} ms" if row.step_least_ms else ""
    return (
        f"p90 {_format_ms(row.p90_ms)} ms{step}"
        + (" (loaded)" if row.loaded else "")
        + (" (throttled)" if row.throttled else "")
    )


def make_ratio_table(found: Sequence[Ratio]) -> Table:
    """Return a table of new over old times with verdicts."""
    made = SafeTable(
        "submodel",
        "runtime",
        "threads",
        "p90 new/old",
        "step new/old",
        "",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    for ratio in found:
        values = [value for value in (ratio.p90, ratio.step) if value is not None]
        verdict = (
            "slower"
            if ratio.worst > 1 + NOISE
            else "quicker"
            if values and max(values) < 1 - NOISE
            else ""
        )
        cells = ["-" if value is None else f"{value:.2f}" for value in (ratio.p90, ratio.step)]
        made.add_row(ratio.row.submodel, ratio.row.runtime, str(ratio.row.threads), *cells, verdict)
    return made


def _measure_width(column: Column, rows: Sequence[Row]) -> int:
    return max(
        len(text) for text in (*column.head.split("\n"), *(column.cell(row) for row in rows))
    )


def _format_versions(found: dict[str, str]) -> str:
    return ", ".join(
        f"{name} {version}" for name, version in found.items() if version and name != NAME
    )


def _format_frequency_drop(before: float | None, after: float | None) -> str:
    """Return both frequencies if the frequency dropped, else ""."""
    return (
        f"{before:.0f}-{after:.0f}"
        if before and after and after < before * (1 - FREQUENCY_DROP)
        else ""
    )


def format_count(number: float | None) -> str:
    """Format with three significant digits and a unit."""
    if number is None:
        return ""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g} {unit}"
    return f"{number:.3g}"


def _format_ms(value: float | None) -> str:
    """Format with three significant digits."""
    if value is None:
        return ""
    return (
        f"{value:.0f}"
        if value >= 99.95
        else f"{value:.3g}"
        if value >= 9.995
        else f"{value:.2f}"
        if value >= 0.995
        else f"{value:.3f}"
    )


def _format_megabytes(size: int | None) -> str:
    if size is None:
        return ""
    return (
        f"{size / 1e6:.0f}"
        if size >= 10e6
        else f"{size / 1e6:.1f}"
        if size >= 1e6
        else f"{size / 1e6:.3f}"
    )
