"""Draw the ratios of a benchmark's result."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from benchmarks.comparison.result import (
    BenchmarkResult,
    find_file,
    format_goal,
    format_ratio,
    read_results,
)
from benchmarks.comparison.rows import Row

__all__ = ["draw_ratios", "find_outdated_pictures"]

WIDTH, MARGIN, PER_ROW = 6.6, 1.3, 0.44  # inches; narrow, so that a phone shows readable text
COLOURS = {True: "#0072b2", False: "#d55e00", None: "#999999"}  # also for the colour-blind
SMALL = 8.5  # points


def find_outdated_pictures() -> dict[Path, BenchmarkResult]:
    """Return the pictures, beside the results, that are missing or were drawn from another result.

    Only the digest of the result that is noted in the picture is compared, since the rest depends
    on the version of the drawing library.
    """
    found = {find_file(one.name).with_suffix(".svg"): one for one in read_results()}
    return {
        path: one
        for path, one in found.items()
        if not path.exists() or read_digest(one.name) not in path.read_text()
    }


def read_digest(name: str) -> str:
    """Return the digest of a result's file."""
    return sha256(find_file(name).read_bytes()).hexdigest()


def draw_ratios(path: Path, result: BenchmarkResult) -> None:
    """Draw a bar from 1 to each ratio, and a mark at its goal."""
    # imported here, so that a check needs no drawing library
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows = [row for row in result.rows if row.ratio is not None]
    size = (WIDTH, MARGIN + PER_ROW * len(rows))
    figure = Figure(size, layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.set_xscale("log")
    for place, row in enumerate(rows):
        ratio = row.ratio or 1.0
        axes.barh(place, ratio - 1, left=1, height=0.3, color=COLOURS[row.met])
        if row.goal is not None:
            axes.plot(row.goal, place, "D", color="black", markersize=4)
        across = axes.get_yaxis_transform()  # x: fraction of the width, y: place
        text = f"{describe(row)}: {describe_ratio(row)}"
        said = axes.text(
            *(0.01, place - 0.33, text),
            transform=across,
            fontsize=SMALL,
            va="center",
            bbox={"facecolor": "white", "linewidth": 0, "pad": 0.5},  # hides the line at 1
        )
        said.set_in_layout(False)  # the widest must not narrow the axes
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(ylim=(len(rows) - 0.5, -0.8), yticks=[], xlabel="ratio (above 1: ours needs less)")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.25, axis="x")
    legend = "blue: goal met, orange: missed, grey: no goal\ndiamond: the goal"
    axes.set_title(f"{result.name}\n{legend}", fontsize="small")
    digest = {"Description": f"sha256 of the result: {read_digest(result.name)}", "Date": None}
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": result.name}):
        figure.savefig(path, metadata=digest)


def describe(row: Row) -> str:
    return f"{row.name} / {row.baseline.name}" if row.baseline else row.name


def describe_ratio(row: Row) -> str:
    goal, met = format_goal(row)
    parts = (format_ratio(row.ratio), f"goal {goal}" if goal else "", met)
    return ", ".join(part for part in parts if part)
