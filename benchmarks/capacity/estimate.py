"""An estimate with what it is based on and what it leaves out, as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.capacity.measured_points import MEMORY, Line, MeasuredPoints
from benchmarks.capacity.needs import BrokerTraffic, FleetNeeds, FleetPlan
from benchmarks.comparison.result import format_value

__all__ = [
    "LEFT_OUT",
    "Estimate",
    "format_estimate",
    "list_costs",
    "list_doubts",
    "list_lines",
    "list_needs",
]

LEFT_OUT = (
    "All agents took part in the measured rounds. The time to choose some of many is left out.",
    "One process of the coordinator plans the tasks, writes the journal, and adds updates in the "
    "order of agent names; workers take over none of this. Where more than one processor is "
    "needed for it, the estimate is not valid: use gateways.",
    "Left out: heartbeats in the broker's processor time; TLS, which the measured broker did not "
    "use; joining and reconnecting; calibration and scores; repeated transfers; the more frequent "
    "heartbeats of tasks with leases below 75 s.",
    "Updates arrive evenly, over MQTT in messages of 256 KiB. Bytes are those of weights, updates "
    "and heartbeats. A managed broker may count a large message as several.",
    "Not estimated: the time of a round, since agents and broker shared the measured machine; "
    "disk; memory of workers and broker; gateways with their brokers.",
)
COST_FLAGS = {
    "processors": "--price-core-hour",
    "broker nodes": "--price-node-hour",
    "bytes to agents": "--price-gb-down",
    "bytes from agents": "--price-gb-up",
    "messages": "--price-million-messages",
    "connections": "--price-million-minutes",
}
NODE_FLAGS = {"connections": "--node-connections", "messages": "--node-messages"}
FAR = 10  # times the largest measured number of agents, beyond which a line is a doubt
SMALL = 0.01  # of the measured time, that a line may be below 0 without agents


@dataclass(frozen=True)
class Estimate:
    """What a fleet needs, and why.

    measured: the points
    lines: through the points, by quantity (seconds of processor time and bytes, of one round)
    plan: the fleet
    needs: what it needs
    doubts: reasons to doubt this estimate
    left_out: what no estimate contains
    """

    measured: MeasuredPoints
    lines: dict[str, Line]
    plan: FleetPlan
    needs: FleetNeeds
    doubts: tuple[str, ...]
    left_out: tuple[str, ...] = LEFT_OUT


def list_doubts(
    measured: MeasuredPoints, lines: dict[str, Line], plan: FleetPlan
) -> tuple[str, ...]:
    """Return the reasons to doubt an estimate."""
    found, largest = [], measured.agents[-1]
    if plan.participants > FAR * largest:
        times = format_value(plan.participants / largest)
        found.append(f"{times} times as many agents take part as were measured.")
    if any(line.predicted is None for line in lines.values()):
        found.append("The lines are not checked: this needs a third, smaller number of agents.")
    if rising := [name for name, one in lines.items() if rises(name, one)]:
        found.append(
            f"The cost of an agent rises with their number ({', '.join(rising)}), so a larger "
            "fleet needs more than the line says."
        )
    if {plan.model_bytes, plan.update_bytes} != {measured.update_bytes}:
        found.append(
            f"Processor times are those of weights and updates of {measured.update_bytes:,} bytes."
        )
    if len(measured.commits) > 1:
        found.append("The points were measured with different commits.")
    return tuple(found)


def rises(name: str, line: Line) -> bool:
    """Return whether a time grows faster than the number of agents, by more than rounding."""
    return name != MEMORY and line.fixed < -SMALL * line.measured


def format_estimate(found: Estimate) -> str:
    """Return an estimate as text."""
    measured, plan = found.measured, found.plan
    numbers = ", ".join(f"{n:,}" for n in measured.agents)
    settings = ", ".join(f"{name} {value}" for name, value in measured.settings.items())
    via = f", {plan.devices_per_site:,} behind each gateway" if plan.devices_per_site else ""
    return "\n".join(
        [
            f"measured with {numbers} agents: {settings}; {measured.machine}; commit "
            f"{', '.join(one[:8] or 'unknown' for one in measured.commits)}",
            "",
            *format_table(list_lines(found.lines)),
            "",
            f"{plan.agents:,} devices{via}, {format_value(plan.rounds_per_day)} rounds a day, "
            f"updates arrive during {format_value(plan.hours)} h of each",
            "",
            *format_table([*list_needs(found.needs)]),
            "",
            *format_table([*list_costs(found.needs)]),
            "",
            *(f"doubt: {one}" for one in found.doubts),
            *(f"limit: {one}" for one in found.left_out),
        ]
    )


def format_table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Return lines with the cells of each column below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()


def list_lines(lines: dict[str, Line]) -> list[tuple[str, ...]]:
    """Return the rows of the table of lines, with a head."""
    largest = max(line.largest for line in lines.values())
    rows: list[tuple[str, ...]] = [
        ("in a round", "fixed", "per agent", f"with {largest:,}", "predicted", "error")
    ]
    for name, line in lines.items():
        label, unit = (f"{name} (MB)", 1e-6) if name == MEMORY else (f"{name} (s)", 1.0)
        rows.append(
            (
                label,
                format_value(unit * line.fixed),
                format_value(unit * line.per_agent),
                format_value(unit * line.measured),
                "" if line.predicted is None else format_value(unit * line.predicted),
                "" if line.error is None else f"{100 * line.error:+.1f} %",
            )
        )
    return rows


def list_needs(needs: FleetNeeds) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table of needs."""
    yield "connections of agents", f"{needs.connected:,}; {needs.participants:,} in a round"
    beating = (
        "unknown for heartbeats (--heartbeat-us)"
        if needs.heartbeat_cores is None
        else f"{format_value(needs.heartbeat_cores)} for heartbeats"
    )
    yield "coordinator", f"{format_value(needs.coordinator_cores)} processors, and {beating}"
    yield "", describe_process(needs)
    yield "", f"{format_value(needs.coordinator_bytes / 1e9)} GB of memory"
    yield "workers", f"{format_value(needs.worker_cores)} processors"
    yield "broker", f"{format_value(needs.broker_cores)} processors"
    for name, nodes in needs.nodes.items():
        known = f"{nodes:,} nodes" if nodes else f"unknown nodes ({NODE_FLAGS[name]})"
        yield "", f"{known} for {name}"
    yield from list_traffic(needs.traffic)


def list_traffic(traffic: BrokerTraffic) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table of needs about messages and bytes."""
    rate = format_value(traffic.messages_per_second)
    yield "messages", f"{rate} a second into and out of the broker"
    yield (
        "",
        f"{format_value(traffic.heartbeats_per_second)} heartbeats a second to the coordinator",
    )
    yield "", f"{format_value(traffic.messages_per_day / 1e6)} million a day"
    for name, once, daily in (
        ("bytes to agents", traffic.bytes_down_per_round, traffic.bytes_down_per_day),
        ("bytes from agents", traffic.bytes_up_per_round, traffic.bytes_up_per_day),
    ):
        yield name, f"{format_value(once / 1e9)} GB a round, {format_value(daily / 1e9)} GB a day"


def describe_process(needs: FleetNeeds) -> str:
    """Return how many connections one process serves, and what to do if these are too few."""
    most = f"one process serves at most {needs.most_connected:,} connections"
    if needs.heartbeat_cores is None:
        most += " (without heartbeats)"
    if needs.fits:
        return most
    if needs.least_devices_per_site is None:
        return f"{most}: no number of gateways is small enough"
    return f"{most}: use gateways for {needs.least_devices_per_site:,} devices or more each"


def list_costs(needs: FleetNeeds) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table of costs."""
    yield "cost of a day", ""
    for name, cost in needs.costs.items():
        yield f"  {name}", f"unknown ({COST_FLAGS[name]})" if cost is None else f"{cost:,.2f}"
    known = "unknown" if needs.total is None else f"{needs.total:,.2f}"
    partly = needs.total is not None and None in needs.costs.values()
    yield "  total", known + (" without the unknown" if partly else "")
