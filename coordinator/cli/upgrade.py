"""`coordinator upgrade RUN [VERSION]`: name the version of the software that the devices of a run
are to install, or take it back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from coordinator.cli.options import RUNS, print_errors
from federated.errors import ExportError
from federated.runtime.console import FORMAT, FiniteRange, print_result, speaker

__all__ = ["upgrade"]


@click.command()
@click.argument("run")
@click.argument("version", required=False)
@click.option(
    "--sha256", metavar="HEX", help="sha256 of the version's wheel; required with VERSION"
)
@click.option(
    "--broker",
    metavar="HOST|URL",
    help="address of the agents' broker  [default: the one of the run, as its coordinator reaches "
    "it]",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="LABEL",
    help="only for the run's agents with this label; repeat it for agents with all of several",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="only for the run's agents in this group, which the coordinator keeps; repeat it for "
    "agents in all of several",
)
@click.option(
    "--canary",
    "share",
    metavar="10%|N|NAME,NAME",
    help="for some devices first: a percentage or a number of those that follow, or names",
)
@click.option(
    "--promote",
    is_flag=True,
    help="order the canary for all agents if its devices are healthy; with --canary: wait for "
    "them, then promote or roll back",
)
@click.option(
    "--rollback",
    is_flag=True,
    help="withdraw the canary, or the last version if there is no canary",
)
@click.option("--status", is_flag=True, help="only show what is wanted, and what devices report")
@click.option(
    "--wait",
    type=FiniteRange(min=0),
    metavar="SECONDS",
    help="time for the devices of a canary to install it and to answer a task  [default: 7200]",
)
@click.option(
    "--force",
    is_flag=True,
    help="promote regardless of reports, or order a version again that was rolled back",
)
@RUNS
@FORMAT
def upgrade(runs: Path, form: str, **options: Any) -> None:
    """Name the VERSION that devices of RUN are to install.

    Devices whose owners let them (edge-agent update --wanted) install it from their package index.
    With --canary, only some of them do so first. Without VERSION, publish the order again.

    The exit code is 8 if a canary is not promoted or was rolled back.
    """
    with print_errors("upgrade"):
        from coordinator.upgrade.agent_upgrade import upgrade_run
        from coordinator.upgrade.upgrade_request import UpgradeRequest

        result = upgrade_run(UpgradeRequest(**options), runs, say=speaker(form))
        print_result(result, form)
        if "error" in result:
            raise ExportError(result["error"])
