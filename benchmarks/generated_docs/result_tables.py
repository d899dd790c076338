"""Write the documentation's tables of the benchmarks whose results are saved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from benchmarks.comparison.result import (
    BenchmarkResult,
    describe_surroundings,
    format_cells,
    format_ratio,
    format_value,
    list_absent,
    read_results,
)
from benchmarks.comparison.rows import AT_MOST
from benchmarks.generated_docs.markdown_table import render_table

__all__ = ["drop_measured", "list_results", "list_summaries"]

EXPLANATION = (
    "The ratio is the peer's median, or the limit's, divided by ours. Above 1, ours needs less "
    "time, memory or bytes, or has the smaller error. The goals are the least ratios that the "
    "project aims for. A `+` after the commit means that other files than results and "
    "documentation had changed since."
)


def list_summaries() -> Iterator[str]:
    """Yield the table of the first page: the range of the ratios to each peer and limit."""
    rows = [
        (f"[`{one.name}`](docs/benchmarks.md#{one.name})", summarise(one), count_goals(one))
        for one in read_results()
    ]
    if rows:
        ratio = "time, memory, bytes or error of peers and limits, divided by ours"
        yield from render_table(("benchmark", ratio, "goals met"), rows)


def summarise(result: BenchmarkResult) -> str:
    """Return the range of the ratios to each baseline, or the values if at most one row has
    a ratio to a baseline.
    """
    ratios: dict[str, list[float]] = {}
    for row in result.rows:
        if row.baseline and row.baseline.name != AT_MOST and row.ratio is not None:
            ratios.setdefault(row.baseline.name, []).append(row.ratio)
    if sum(map(len, ratios.values())) > 1:
        return "; ".join(f"{name} {format_range(found)}" for name, found in ratios.items())
    measured = [row for row in result.rows if row.goal is not None]
    return "; ".join(f"{row.name} {format_value(row.ours)}" for row in measured)


def format_range(ratios: Sequence[float]) -> str:
    least, largest = format_ratio(min(ratios)), format_ratio(max(ratios))
    return least if least == largest else f"{least} to {largest}"


def count_goals(result: BenchmarkResult) -> str:
    met = [row.met for row in result.rows if row.met is not None]
    return f"{sum(met)} of {len(met)}"


def list_results() -> Iterator[str]:
    """Yield a section for each result: its surroundings, its picture and all its rows."""
    results = read_results()
    if results:
        yield from ("", EXPLANATION, "")
    for one in results:
        picture = f"![ratios of {one.name}](../benchmarks/results/{one.name}.svg)"
        yield from (f"### {one.name}", "", describe_surroundings(one), "", picture, "")
        heads = ("", "ours", "peer", "limit", "ratio", "goal", "")
        yield from render_table(heads, map(format_cells, one.rows))
        yield ""
        for line in list_absent(one):
            yield from (f"{line[0].upper()}{line[1:]}", "")
        for failure in one.failures:
            yield from (f"Failed: `{failure.name}`: {failure.reason}", "")


def drop_measured(page: str) -> str:
    """Return a page without the rows that were written by hand about benchmarks whose results are
    saved. Their last cell is the command.
    """
    if names := "|".join(one.name for one in read_results()):
        row = rf"^\|.*\| `(?:python -m benchmarks )?(?:{names})(?: [^`|]*)?` \|\n"
        return re.sub(row, "", page, flags=re.MULTILINE)
    return page
