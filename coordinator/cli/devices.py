"""The command `coordinator devices`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from coordinator.cli.options import RUNS, print_errors
from federated.runtime.console import FORMAT

__all__ = ["devices"]


@click.command()
@click.argument("run", required=False)
@RUNS
@FORMAT
def devices(run: str | None, runs: Path, form: str) -> None:
    """Show the agents of RUN, their devices and submodels.

    RUN defaults to the latest.
    """
    with print_errors("devices"):
        from coordinator.views.agent_table import describe_agents, render_agents

        found = describe_agents(run, runs)
        click.echo(json.dumps(found) if form == "json" else render_agents(found))
