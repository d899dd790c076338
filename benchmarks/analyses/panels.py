"""Define the result of an analysis, a table of numbers with a title, and write it as CSV and as a
heat map.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["Panel", "draw_panels", "make_panel", "write_panels"]

DPI = 130
ACROSS = 3  # largest number of panels side by side
MAX_NAMES = 40  # rows or columns with a name
MAX_NUMBERS = 150  # cells with a written number


@dataclass(frozen=True)
class Panel:
    """A table of numbers.

    title: what the numbers are.
    rows, columns: their names.
    values: [rows, columns], NaN where there is no number.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: NDArray[np.floating]

    @property
    def means(self) -> dict[str, float]:
        """The mean of each row that has numbers."""
        return {
            name: float(np.nanmean(row))
            for name, row in zip(self.rows, self.values, strict=True)
            if not np.isnan(row).all()
        }


def make_panel(title: str, found: Mapping[tuple[str, str], float]) -> Panel:
    """Return a panel of numbers by row and column, in the order in which these first occur."""
    rows = tuple(dict.fromkeys(row for row, _ in found))
    columns = tuple(dict.fromkeys(column for _, column in found))
    values = np.array([[found.get((row, column), np.nan) for column in columns] for row in rows])
    return Panel(title, rows, columns, values)


def write_panels(path: Path, panels: Sequence[Panel]) -> None:
    """Write a CSV file with one line per number."""
    with path.open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["panel", "row", "column", "value"])
        for panel in panels:
            for (row, column), value in np.ndenumerate(panel.values):
                if not np.isnan(value):
                    lines.writerow(
                        [panel.title, panel.rows[row], panel.columns[column], f"{value:.6g}"]
                    )


def draw_panels(path: Path, panels: Sequence[Panel], title: str) -> None:
    """Draw the panels as heat maps with one scale of colours each."""
    from matplotlib.figure import Figure  # of the extra `simulate`

    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    rows = min(MAX_NAMES, max(len(panel.rows) for panel in panels))
    figure = Figure(
        (1 + 4.6 * across, down * (1.6 + 0.22 * rows)), layout="constrained", facecolor="white"
    )
    places = figure.subplots(down, across, squeeze=False).flatten()
    for axes, panel in zip(places, panels, strict=False):
        image = axes.imshow(panel.values, aspect="auto", cmap="viridis", interpolation="nearest")
        figure.colorbar(image)
        axes.set_title(panel.title, fontsize="medium")
        if len(panel.rows) <= MAX_NAMES:
            axes.set_yticks(range(len(panel.rows)), panel.rows, fontsize="x-small")
        step = -(-len(panel.columns) // 10)  # numbers of rounds need not all be written
        shown = range(0, len(panel.columns), step)
        axes.set_xticks(shown, [panel.columns[i] for i in shown], fontsize="x-small", rotation=30)
        if panel.values.size <= MAX_NUMBERS:
            middle = (np.nanmin(panel.values) + np.nanmax(panel.values)) / 2
            for (row, column), value in np.ndenumerate(panel.values):
                dark = value < middle
                axes.text(
                    column,
                    row,
                    "" if np.isnan(value) else f"{value:.3g}",
                    ha="center",
                    va="center",
                    fontsize=6,
                    color="white" if dark else "black",
                )
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, dpi=DPI)
