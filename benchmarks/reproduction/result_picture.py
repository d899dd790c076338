"""Draw a table of results beside the paper's numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.reproduction.result_table import Entry

__all__ = ["draw_entries"]

DPI = 130
OURS, THEIRS = "#0072b2", "#d55e00"  # distinguishable by the colour-blind
COLUMNS = 4  # largest number of panels in a row
PER_INCH = 12  # letters of the title


def draw_entries(path: Path, entries: Sequence[Entry], title: str, data: str) -> None:
    """Draw a panel for each column: a bar for each row with its deviation over seeds, and a mark
    at the paper's number. data: what this run learned, which at a small scale is not the paper's.
    """
    titles = list(dict.fromkeys(entry.title for entry in entries))
    across, rows = min(len(titles), COLUMNS), len({entry.row for entry in entries})
    down = -(-len(titles) // across)
    size = (1.8 + 2.4 * across, down * (1.2 + 0.28 * rows))
    figure = Figure(size, layout="constrained", facecolor="white")
    panels = figure.subplots(down, across, squeeze=False, sharey=True).flatten()
    for axes, name in zip(panels, titles, strict=False):
        draw_panel(axes, [entry for entry in entries if entry.title == name])
        axes.set_title(name, fontsize="medium")
    for axes in panels[len(titles) :]:
        axes.set_visible(False)
    legend = ", diamonds: the paper" if any(entry.paper for entry in entries) else ""
    wrapped = textwrap.fill(title, int(PER_INCH * size[0]))
    figure.suptitle(f"{wrapped}\nbars: this run on {data}{legend}", fontsize="medium")
    figure.savefig(path, dpi=DPI)


def draw_panel(axes: Axes, entries: Sequence[Entry]) -> None:
    places = range(len(entries))
    axes.barh(
        places,
        [entry.mean or 0.0 for entry in entries],
        xerr=[entry.deviation for entry in entries],
        color=OURS,
        height=0.6,
    )
    marks = [(read_number(entry.paper), place) for place, entry in enumerate(entries)]
    known = [(number, place) for number, place in marks if number is not None]
    if known:
        axes.plot(*zip(*known, strict=True), "D", color=THEIRS, markersize=5)
    axes.set_yticks(places, [entry.row for entry in entries], fontsize="small")
    axes.set_ylim(len(entries) - 0.5, -0.5)
    axes.grid(alpha=0.25, axis="x")


def read_number(paper: str) -> float | None:
    """Return the number of a text such as `86.7 ± 1.0`."""
    return float(paper.partition("±")[0]) if paper else None
