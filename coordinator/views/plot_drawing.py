"""Draw plots of a run as PNG files: accuracy, bytes, time, assigned submodels, and the partition of
the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from federated.wire.release_messages import label_submodel

__all__ = [
    "plot_accuracies",
    "plot_assignment",
    "plot_partition",
    "plot_times",
    "plot_traffic",
]

DPI = 130
MAX_NUMBERS = 400  # cells with a written number
MAX_NAMES = 40  # rows or columns with a name
MAX_LINES = 12  # devices with a line of their own


def plot_accuracies(
    path: Path, seeds: Sequence[Sequence[Mapping[str, Any]]], submodels: Sequence[str], title: str
) -> None:
    """Plot a line per submodel, from dark (the smallest) to bright: the mean over seeds, within the
    range from minimum to maximum.

    seeds: scores of each seed as plain values. The central view is plotted if there is one, else
        that of devices. Accuracy is R2 for values; texts are plotted by perplexity.
    """
    view = (
        "central" if any(s["view"] == "central" for scores in seeds for s in scores) else "devices"
    )
    known = {name for scores in seeds for s in scores for name in s["metrics"]}
    metric = "perplexity" if "perplexity" in known else "accuracy"
    figure, axes = make_axes(8.2, 4.2)
    first = 0.05 if is_light(figure) else 0.35  # the darkest colours vanish on a dark page
    colours = mpl.colormaps["viridis"](np.linspace(first, 0.9, len(submodels)))
    for submodel, colour in zip(submodels, colours, strict=True):
        found: dict[int, list[float]] = {}
        for scores in seeds:
            for s in scores:
                if (s["view"], s["submodel"]) == (view, submodel):
                    found.setdefault(s["round"], []).append(s["metrics"][metric])
        if found:
            last = [
                s
                for scores in seeds
                for s in scores
                if (s["view"], s["submodel"], s["round"]) == (view, submodel, max(found))
            ]
            untrained = bool(last) and all(s.get("trained_updates") == 0 for s in last)
            rounds, values = zip(*sorted(found.items()), strict=True)
            axes.plot(
                rounds,
                [np.mean(v) for v in values],
                color=colour,
                label=label_submodel(submodel, untrained=untrained),
                marker="." if len(rounds) < MAX_NAMES else "",
            )
            axes.fill_between(
                rounds,
                [min(v) for v in values],
                [max(v) for v in values],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
    axes.set(xlabel="round", ylabel=f"{'R2' if 'rmse' in known else metric} ({view})", title=title)
    axes.set_yscale("log" if metric == "perplexity" else "linear")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    figure.legend(
        title="submodel", fontsize="small", title_fontsize="small", loc="outside right upper"
    )
    figure.savefig(path, dpi=DPI)


def plot_partition(
    path: Path, counts: NDArray[np.integer[Any]], agents: Sequence[str], title: str
) -> None:
    """Plot the number of examples of each class (or bin of values) at each device.

    counts: numbers of examples, [agents, classes].
    """
    rows, columns = counts.shape
    figure, axes = make_axes(min(14.0, 2.5 + 0.55 * columns), min(14.0, 1.6 + 0.3 * rows))
    image = axes.imshow(counts, aspect="auto", cmap="viridis")
    figure.colorbar(image, label="examples")
    axes.set(
        xlabel="class",
        ylabel="device",
        title=title,
        xticks=range(columns) if columns <= MAX_NAMES else [],
    )
    if rows <= MAX_NAMES:
        axes.set_yticks(range(rows), agents, fontsize="small")
    if rows * columns <= MAX_NUMBERS:
        for row, column in np.ndindex(rows, columns):
            dark = counts[row, column] < counts.max() / 2
            axes.text(
                column,
                row,
                str(counts[row, column]),
                ha="center",
                va="center",
                fontsize=6,
                color="white" if dark else "black",
            )
    figure.savefig(path, dpi=DPI)


def plot_traffic(path: Path, rounds: Sequence[tuple[int, int, int]], title: str) -> None:
    """Plot the bytes that agents sent and received, in megabytes and summed over rounds.

    rounds: number, bytes from the agents and bytes to them, in order.
    """
    numbers, up, down = np.array(rounds, dtype=float).T
    figure, axes = make_axes(7, 4.2)
    for values, label, style in ((up, "sent by agents", "-"), (down, "sent to agents", "--")):
        axes.plot(numbers, values.cumsum() / 1e6, style, marker=".", label=label)
    axes.set(xlabel="round", ylabel="MB since the first round", title=title, ylim=(0, None))
    finish_rounds(axes)
    figure.savefig(path, dpi=DPI)


def plot_times(path: Path, times: Mapping[str, Sequence[tuple[int, float]]], title: str) -> None:
    """Plot the seconds from an agent's task to its accepted update: a line per agent, or the median
    and the range from the 10th to the 90th percentile of many agents.

    times: agent -> round and seconds of its updates.
    """
    figure, axes = make_axes(7, 4.2)
    if len(times) <= MAX_LINES:
        colours = mpl.colormaps["tab20"].colors  # type: ignore[attr-defined]
        for colour, (agent, several) in zip(colours, times.items(), strict=False):
            axes.plot(*zip(*several, strict=True), marker=".", color=colour, label=agent)
    else:
        by_round: dict[int, list[float]] = {}
        for number, seconds in sorted(one for several in times.values() for one in several):
            by_round.setdefault(number, []).append(seconds)
        low, middle, high = (
            [np.percentile(several, share) for several in by_round.values()]
            for share in (10, 50, 90)
        )
        axes.plot(list(by_round), middle, marker=".", label=f"median of {len(times)} agents")
        axes.fill_between(list(by_round), low, high, alpha=0.2, label="10 to 90 %")
    axes.set(xlabel="round", ylabel="seconds until the update was in", title=title, ylim=(0, None))
    finish_rounds(axes)
    figure.savefig(path, dpi=DPI)


def plot_assignment(
    path: Path,
    assigned: Mapping[str, Sequence[tuple[int, str, bool]]],
    submodels: Sequence[str],
    title: str,
) -> None:
    """Plot the submodel of each agent in each round. A cross marks an update that was not folded.

    assigned: agent -> round, submodel, and whether the update was folded.
    submodels: of the menu, by name, smallest first.
    """
    numbers = [number for several in assigned.values() for number, *_ in several]
    first = min(numbers)
    cells = np.full((len(assigned), max(numbers) - first + 1), np.nan)
    lost = list[tuple[int, int]]()  # round, row
    for row, several in enumerate(assigned.values()):
        for number, submodel, folded in several:
            cells[row, number - first] = submodels.index(submodel)
            lost += [] if folded else [(number, row)]
    height = min(14.0, 1.8 + 0.3 * len(assigned))
    figure, axes = make_axes(7.6, max(height, 1.4 + 0.22 * len(submodels)))
    colours = mpl.colormaps["viridis"].resampled(len(submodels))
    image = axes.imshow(
        cells,
        aspect="auto",
        cmap=colours,
        vmin=-0.5,
        vmax=len(submodels) - 0.5,
        interpolation="nearest",
        extent=(first - 0.5, max(numbers) + 0.5, len(assigned) - 0.5, -0.5),
    )
    axes.hlines(
        np.arange(1, len(assigned)) - 0.5, first - 0.5, max(numbers) + 0.5, "white", linewidth=1
    )
    if lost:
        axes.plot(*zip(*lost, strict=True), "x", color="red", label="not folded")
        axes.legend(fontsize="small", loc="upper right")
    bar = figure.colorbar(image, ticks=range(len(submodels)), label="submodel")
    bar.ax.set_yticklabels(submodels, fontsize="small")
    axes.set(xlabel="round", ylabel="agent", title=title)
    if len(assigned) <= MAX_NAMES:
        axes.set_yticks(range(len(assigned)), list(assigned), fontsize="small")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=DPI)


def is_light(figure: Figure) -> bool:
    """Return True if a figure has a light background."""
    return sum(to_rgb(figure.get_facecolor())) > 1.5


def make_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure of this size, in inches, and its axes."""
    figure = Figure((width, height), layout="constrained")
    return figure, figure.subplots()


def finish_rounds(axes: Axes) -> None:
    """Add whole rounds, a grid and a legend to a plot over rounds."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.legend(fontsize="small")
