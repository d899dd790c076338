"""`coordinator devices [RUN]`: show the agents of a run, their devices and their submodels."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import RUNS, print_errors
from federated.runtime.console import FORMAT, print_result

__all__ = ["devices"]


@click.command()
@click.argument("run", required=False)
@RUNS
@FORMAT
def devices(run: str | None, runs: Path, form: str) -> None:
    """Show the agents of RUN, their devices and submodels.

    RUN defaults to the latest run.
    """
    with print_errors("devices"):
        from coordinator.views.agent_table import describe_agents, render_agents

        print_result(describe_agents(run, runs), form, render_agents)
