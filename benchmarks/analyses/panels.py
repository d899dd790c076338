"""Define the result of an analysis, a table of numbers with a title, and write it as CSV and as a
picture.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

__all__ = ["Panel", "draw_panels", "make_panel", "write_panels"]

DPI = 130
ACROSS = 3  # largest number of panels side by side
MAX_NAMES = 40  # rows or columns with a name
SQUARE = 12  # rows of a heat map as high as a panel of points
MAX_NUMBERS = 150  # cells with a written number


@dataclass(frozen=True)
class Panel:
    """A table of numbers.

    title: what the numbers are.
    rows, columns: their names.
    values: [rows, columns], NaN where there is no number.
    groups: of the rows, which are then points in the plane, drawn in the colour of their group;
        empty: the values are drawn as a heat map.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: NDArray[np.floating]
    groups: tuple[str, ...] = ()

    @property
    def means(self) -> dict[str, float]:
        """The mean of each row that has numbers; nothing for points."""
        return {
            name: float(np.nanmean(row))
            for name, row in zip(self.rows, self.values, strict=True)
            if not self.groups and not np.isnan(row).all()
        }


def make_panel(
    title: str, found: Mapping[tuple[str, str], float], groups: Sequence[str] = ()
) -> Panel:
    """Return a panel of numbers by row and column, in the order in which these first occur."""
    rows = tuple(dict.fromkeys(row for row, _ in found))
    columns = tuple(dict.fromkeys(column for _, column in found))
    values = np.array([[found.get((row, column), np.nan) for column in columns] for row in rows])
    return Panel(title, rows, columns, values, tuple(groups))


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
    """Draw the panels, each as a heat map with its own scale of colours, or as points."""
    from matplotlib.figure import Figure  # of the extra `simulate`

    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    rows = max(min(MAX_NAMES, SQUARE if one.groups else len(one.rows)) for one in panels)
    figure = Figure(
        (1 + 4.6 * across, down * (1.6 + 0.22 * rows)), layout="constrained", facecolor="white"
    )
    places = figure.subplots(down, across, squeeze=False).flatten()
    for axes, panel in zip(places, panels, strict=False):
        axes.set_title(panel.title, fontsize="medium")
        if panel.groups:
            draw_points(axes, panel)
        else:
            figure.colorbar(draw_heat_map(axes, panel))
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, dpi=DPI)


def draw_points(axes: Axes, panel: Panel) -> None:
    """Draw the rows as points, with a legend of their groups."""
    groups = np.array(panel.groups)
    for group in dict.fromkeys(panel.groups):
        x, y = panel.values[groups == group].T
        axes.plot(x, y, ".", markersize=4, label=group)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.legend(fontsize="x-small")


def draw_heat_map(axes: Axes, panel: Panel) -> AxesImage:
    """Draw the values as colours, and few of them as numbers too."""
    image = axes.imshow(panel.values, aspect="auto", cmap="viridis", interpolation="nearest")
    if len(panel.rows) <= MAX_NAMES:
        axes.set_yticks(range(len(panel.rows)), panel.rows, fontsize="x-small")
    step = -(-len(panel.columns) // 10)  # numbers of rounds need not all be written
    shown = range(0, len(panel.columns), step)
    axes.set_xticks(shown, [panel.columns[i] for i in shown], fontsize="x-small", rotation=30)
    if panel.values.size <= MAX_NUMBERS:
        middle = (np.nanmin(panel.values) + np.nanmax(panel.values)) / 2
        for (row, column), value in np.ndenumerate(panel.values):
            axes.text(
                column,
                row,
                "" if np.isnan(value) else f"{value:.3g}",
                ha="center",
                va="center",
                fontsize=6,
                color="white" if value < middle else "black",
            )
    return image
