"""Define the command `edge-agent doctor` and its options; `edge_agent.doctor` does the work."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from edge_agent.cli.flags import print_errors
from federated.runtime.console import FORMAT

__all__ = ["doctor"]


@click.command()
@click.option(
    "--broker",
    metavar="HOST|URL",
    help="address of the coordinator's broker; without it, only the device is checked",
)
@click.option("--run", metavar="NAME", help="run to check, if the broker has several")
@click.option(
    "--name",
    metavar="ID",
    help="this agent's name  [default: that of its certificate, its broker user, or the host name]",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="folder for weights and updates  [default: that of `edge-agent join`]",
)
@FORMAT
def doctor(
    broker: str | None, run: str | None, name: str | None, spool: Path | None, form: str
) -> None:
    """Check whether this device can join a run.

    Print a remedy for each problem. The device does not join. The exit code is 0 if nothing failed,
    or else that of the first failure.
    """
    with print_errors("doctor"):
        from edge_agent.access.broker_credentials import resolve_broker
        from edge_agent.cli.option_values import check_agent_name
        from edge_agent.device import state_folder
        from edge_agent.doctor.connection_checks import examine
        from federated.wire.checks.check_result import print_checks

        broker, name = resolve_broker(broker, name)
        checks = examine(broker, run, check_agent_name(name), spool or state_folder.locate_state())
        sys.exit(print_checks(checks, form))
