"""Pictures of a simulation, as PNG: accuracy by round and submodel, and partition of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from federated.wire.release_files import label_submodel

__all__ = ["plot_accuracies", "plot_partition"]

DPI = 130
MAX_NUMBERS = 400  # cells with a written number
MAX_NAMES = 40  # rows or columns with a name


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
    figure = Figure((7, 4.2), layout="constrained")
    axes = figure.subplots()
    colours = mpl.colormaps["viridis"](np.linspace(0.05, 0.9, len(submodels)))
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
    axes.legend(title="submodel", fontsize="small", title_fontsize="small")
    figure.savefig(path, dpi=DPI)


def plot_partition(
    path: Path, counts: NDArray[np.integer[Any]], agents: Sequence[str], title: str
) -> None:
    """Plot the number of examples of each class (or bin of values) at each device.

    counts: numbers of examples, [agents, classes].
    """
    rows, columns = counts.shape
    figure = Figure(
        (min(14.0, 2.5 + 0.55 * columns), min(14.0, 1.6 + 0.3 * rows)), layout="constrained"
    )
    axes = figure.subplots()
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
