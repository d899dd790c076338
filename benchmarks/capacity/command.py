"""`python -m benchmarks capacity FILE...`: estimate what a large fleet needs, from saved results of
`python -m benchmarks scale` at smaller numbers of agents.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchmarks.capacity.estimate import Estimate, format_estimate, list_doubts
from benchmarks.capacity.measured_points import fit_lines, read_points
from benchmarks.capacity.needs import FleetPlan, find_needs
from coordinator.broker.broker_profiles import PROFILES
from federated.runtime.console import FORMAT, FiniteRange, print_result, report_errors

__all__ = ["command"]


COUNT = click.IntRange(min=1)
POSITIVE = FiniteRange(min=0, min_open=True)
PRICE = FiniteRange(min=0)


@click.command("capacity")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@click.option(
    "--agents", type=COUNT, default=1_000_000, show_default=True, help="devices of the fleet"
)
@click.option(
    "--rounds-per-day", type=POSITIVE, default=1.0, show_default=True, help="rounds of the run"
)
@click.option(
    "--fraction",
    type=FiniteRange(min=0, max=1, min_open=True),
    default=1.0,
    show_default=True,
    help="fraction of the agents that take part in a round",
)
@click.option(
    "--hours", type=POSITIVE, help="hours of a round in which updates arrive  [default: all]"
)
@click.option(
    "--model-bytes",
    type=COUNT,
    help="bytes that an agent downloads in a round  [default: as measured]",
)
@click.option("--update-bytes", type=COUNT, help="bytes of its update  [default: as --model-bytes]")
@click.option(
    "--devices-per-site",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="devices behind each gateway; 0: no gateways",
)
@click.option(
    "--heartbeat-us",
    type=POSITIVE,
    help="microseconds of the coordinator's processor time for a heartbeat",
)
@click.option(
    "--broker-profile",
    type=click.Choice([*PROFILES]),
    help="broker whose limit of messages per second makes heartbeats rarer",
)
@click.option("--node-connections", type=COUNT, help="connections that a node of the broker serves")
@click.option(
    "--node-messages",
    type=POSITIVE,
    help="messages per second, in and out, that a node of the broker handles",
)
@click.option(
    "--node-cores",
    type=POSITIVE,
    default=1.0,
    show_default=True,
    help="processors that a node of the broker uses; mosquitto uses one",
)
@click.option(
    "--price-core-hour", type=PRICE, help="price of a processor for coordinator and workers"
)
@click.option("--price-node-hour", type=PRICE, help="price of a node of the broker")
@click.option("--price-gb-down", type=PRICE, help="price of 10^9 bytes from the broker to agents")
@click.option("--price-gb-up", type=PRICE, help="price of 10^9 bytes from agents to the broker")
@click.option(
    "--price-million-messages", type=PRICE, help="price of messages into and out of the broker"
)
@click.option("--price-million-minutes", type=PRICE, help="price of connections to the broker")
@FORMAT
def command(files: tuple[Path, ...], form: str, **options: Any) -> None:
    """Estimate what a large fleet needs, from results of scale.

    Reads results at two or more numbers of agents (python -m benchmarks scale --agents N --format
    json > FILE), fits a line to each quantity, predicts the largest result from the smaller ones,
    and extrapolates the lines. What you do not state, such as prices, is shown as unknown.
    """
    with report_errors("python -m benchmarks capacity", "coordinator"):
        measured = read_points(files)
        lines = fit_lines(measured)
        model = options.pop("model_bytes") or measured.update_bytes
        update = options.pop("update_bytes") or model
        hours = options.pop("hours") or 24 / options["rounds_per_day"]
        plan = FleetPlan(model_bytes=model, update_bytes=update, hours=hours, **options)
        needs, doubts = find_needs(plan, lines), list_doubts(measured, lines, plan)
        print_result(Estimate(measured, lines, plan, needs, doubts), form, format_estimate)
