"""Plot a benchmark: latency over multiply-adds, one colour per runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from edge_agent.bench.report import Report, Row
from edge_agent.bench.terminal_table import format_count

__all__ = ["SUFFIXES", "draw"]

SUFFIXES = (".pdf", ".png", ".svg")
DPI = 130
MANY_DECADES = 1e4  # ratio of an axis's ends above which only powers of ten have labels
# Okabe and Ito's colours, distinguishable by the colour-blind
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
LINES = ("-", "--", ":", "-.")
MAX_LABELS = 12  # largest number of submodels with labels


def draw(report: Report, path: Path) -> bool:
    """Plot the latency (p90, ms) against the multiply-adds, on logarithmic axes. Rows without both
    are left out. Return False, and write no file, if no row is left.
    """
    rows = [row for row in report.rows if row.macs and row.p90_ms]
    if not rows:
        return False
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure((7.5, 4.6), layout="constrained", facecolor="white")
        axes = figure.subplots()
        _lines(axes, rows)
        _label_sizes(axes, rows)
        networks = ", ".join(dict.fromkeys(row.network for row in rows if row.network))
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="multiply-adds of one example",
            ylabel="latency p90, ms",
        )
        axes.set_title(
            f"{networks}\n{report.fingerprint.processor}".strip(), loc="left", fontsize="medium"
        )
        axes.margins(x=0.16, y=0.14)
        _set_ticks(axes)
        axes.grid(alpha=0.25)
        axes.legend(fontsize="small", frameon=False)
        figure.savefig(path, dpi=DPI)
    return True


def _lines(axes: Axes, rows: Sequence[Row]) -> None:
    runtimes, threads = (
        list(dict.fromkeys(row.runtime for row in rows)),
        sorted({row.threads for row in rows}),
    )
    for runtime, count in sorted(
        {(row.runtime, row.threads) for row in rows},
        key=lambda pair: (runtimes.index(pair[0]), pair[1]),
    ):
        points = sorted(
            (row.macs or 0, row.p90_ms or 0.0)
            for row in rows
            if (row.runtime, row.threads) == (runtime, count)
        )
        label = f"{runtime}, {count} thread{'s' * (count > 1)}"
        colour, style = (
            COLOURS[runtimes.index(runtime) % len(COLOURS)],
            LINES[threads.index(count) % len(LINES)],
        )
        axes.plot(
            *zip(*points, strict=True),
            color=colour,
            linestyle=style,
            marker="o",
            markersize=5,
            label=label,
        )


def _label_sizes(axes: Axes, rows: Sequence[Row]) -> None:
    """Label each submodel at the lower right of its fastest point, where no rising line passes."""
    quickest: dict[str, Row] = {}
    for row in rows:
        if row.submodel not in quickest or (row.p90_ms or 0) < (quickest[row.submodel].p90_ms or 0):
            quickest[row.submodel] = row
    for name, row in quickest.items() if len(quickest) <= MAX_LABELS else ():
        place = (float(row.macs or 0), row.p90_ms or 0.0)
        axes.annotate(
            Path(name).name,
            place,
            (4, -12),
            textcoords="offset points",
            fontsize="small",
            color="0.25",
        )


def _set_ticks(axes: Axes) -> None:
    for axis, spell in ((axes.xaxis, format_count), (axes.yaxis, lambda value: f"{value:g}")):
        low, high = axis.get_view_interval()
        axis.set_major_locator(
            LogLocator(subs=(1.0, 2.0, 5.0) if high < low * MANY_DECADES else (1.0,))
        )
        axis.set_major_formatter(FuncFormatter(lambda value, _, spell=spell: spell(value)))
        axis.set_minor_formatter(NullFormatter())
