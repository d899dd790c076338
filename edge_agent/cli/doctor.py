"""The command `edge-agent doctor`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from edge_agent.cli.flags import plainly
from federated.runtime.console import FORMAT

__all__ = ["doctor"]


@click.command()
@click.option(
    "--broker",
    metavar="HOST|URL",
    help="the coordinator's broker, as edge-agent join takes it; without it only the device is "
    "looked at",
)
@click.option("--run", metavar="NAME", help="which run, where a broker has several")
@click.option(
    "--name",
    metavar="ID",
    help="this agent's name  [default: that of its certificate or user, or made of the host's]",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="where weights and updates are to lie  [default: where edge-agent keeps what must outlive "
    "it]",
)
@FORMAT
def doctor(
    broker: str | None, run: str | None, name: str | None, spool: Path | None, form: str
) -> None:
    """Check whether this device can take part, and say how to solve each problem. It joins nothing.

    Exits with 0 if nothing failed, else with the code of the first failure.
    """
    with plainly("doctor"):
        from edge_agent.access.admission import admitted
        from edge_agent.access.identity import machine_name
        from edge_agent.device import state_folder
        from edge_agent.doctor.check import as_json, exit_code, text
        from edge_agent.doctor.examination import examine

        broker, name = admitted(broker, name)
        checks = []
        for check in examine(broker, run, name or machine_name(), spool or state_folder.folder()):
            checks.append(check)
            if form == "text":
                click.echo(text(check))
        if form == "json":
            click.echo(as_json(checks))
        sys.exit(exit_code(checks))
