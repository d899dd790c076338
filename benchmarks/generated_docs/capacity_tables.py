"""Write the documentation's estimate of what a million devices need, from saved results of
`python -m benchmarks scale`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.capacity.estimate import (
    LEFT_OUT,
    list_costs,
    list_doubts,
    list_lines,
    list_needs,
)
from benchmarks.capacity.measured_points import fit_lines, read_points
from benchmarks.capacity.needs import FleetPlan, find_needs
from benchmarks.comparison import result as results
from benchmarks.comparison.result import BenchmarkResult, format_value, read_result
from benchmarks.generated_docs.markdown_table import render_table

__all__ = ["list_capacity", "list_fleet_sizes"]

POINTS = ("100", "1000", "5000")  # files of results with the same settings
WORKERS = "5000-workers-2"
# What is known about the fleet and its broker. The prices are assumptions, in US dollars.
PLAN = FleetPlan(
    agents=1_000_000,
    rounds_per_day=1,
    fraction=1.0,
    hours=8,
    model_bytes=300_000,
    update_bytes=300_000,
    heartbeat_us=83.0,  # 24,036 cost 2.97 s and 125 cost 0.98 s in a minute, of 200 idle agents
    node_connections=100_000,
    node_messages=40_000,  # 0.51 ms of the measured broker for 25 messages, on one processor
    price_core_hour=0.05,
    price_node_hour=0.2,
    price_gb_down=0.09,
    price_gb_up=0.0,
    price_million_messages=0.0,
    price_million_minutes=0.0,
)
DEVICES_PER_SITE = 100


def read_size(name: str) -> BenchmarkResult:
    return read_result(results.FOLDER / "scale" / f"{name}.json", "scale")


def list_fleet_sizes() -> Iterator[str]:
    """Yield the table of the saved results of scale at several sizes."""
    heads = ("result", "rounds", "workers", "taken", "commit", "load", "coordinator, ms per agent")
    rows = ((name, read_size(name)) for name in (*POINTS, WORKERS))
    yield from render_table(
        (*heads, "workers", "broker", "round, s", "memory, MB", "lost or doubled"),
        (
            (
                f"[{name}](../benchmarks/results/scale/{name}.json)",
                one.options.get("rounds", "20"),
                one.options.get("workers", "0"),
                one.taken[:10],
                one.machine.commit[:8] + "+" * one.machine.commit.endswith("+"),
                f"{one.load:.1f}",
                *(find_cell(one, row) for row in ROWS),
            )
            for name, one in rows
        ),
    )


ROWS = (
    "coordinator's processor time per agent (ms)",
    "workers' processor time per agent (ms)",
    "broker's processor time per agent (ms)",
    "round (s)",
    "coordinator's memory (MB)",
    "updates lost or counted twice",
)


def find_cell(one: BenchmarkResult, name: str) -> str:
    """Return what a row states; empty without the row."""
    found = (row.ours for row in one.rows if row.name.partition(" agents, ")[2] == name)
    return next((format_value(value) for value in found), "")


def list_capacity() -> Iterator[str]:
    """Yield the estimate for a million devices, each connected to the broker or behind gateways."""
    measured = read_points([results.FOLDER / "scale" / f"{name}.json" for name in POINTS])
    lines = fit_lines(measured)
    heads, *rows = list_lines(lines)
    yield from ("", *render_table(heads, rows), "")
    plans = PLAN, replace(PLAN, devices_per_site=DEVICES_PER_SITE)
    needs = [find_needs(plan, lines) for plan in plans]
    columns = ("each connected", f"{DEVICES_PER_SITE} behind each gateway")
    pairs = zip(*map(list_needs, needs), strict=True)
    yield from render_table(
        ("1,000,000 devices", *columns),
        ((left[0], left[1], right[1]) for left, right in pairs),
    )
    yield ""
    (title, _), *_ = list_costs(needs[0])
    costs = zip(*map(list_costs, needs), strict=True)
    yield from render_table(
        (f"{title}, US dollars", *columns),
        ((left[0].strip(), left[1], right[1]) for left, right in [*costs][1:]),
    )
    yield ""
    for doubt in dict.fromkeys(d for plan in plans for d in list_doubts(measured, lines, plan)):
        yield f"- Doubt: {doubt}"
    for left_out in LEFT_OUT:
        yield f"- Limit: {left_out}"
    yield ""
