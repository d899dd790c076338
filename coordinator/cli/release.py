"""The command `coordinator release`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from coordinator.cli.options import RUNS, plainly
from federated.errors import ExportError
from federated.runtime.console import FORMAT, speaker

__all__ = ["release"]


@click.command()
@click.argument("run")
@click.option("--broker", metavar="HOST|URL", help="the broker that agents hear")
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="release this folder of `export`  [default: the run's last round]",
)
@click.option(
    "--canary", "share", metavar="10%|N|NAME,NAME", help="to so many agents first, or to these"
)
@click.option(
    "--promote",
    is_flag=True,
    help="give the canary to all, if its agents report it as good; with --canary: wait, then "
    "promote or roll back",
)
@click.option(
    "--rollback", is_flag=True, help="take the canary back; without one, the last release"
)
@click.option("--status", is_flag=True, help="only say what is released, and what agents report")
@click.option(
    "--wait",
    type=float,
    metavar="SECONDS",
    help="for reports of agents  [default: 60 with --canary, else 0]",
)
@click.option(
    "--force", is_flag=True, help="promote whatever was reported; release what was rolled back"
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="raw examples (.npz) to compare with, where the run's data are not here",
)
@RUNS
@FORMAT
def release(runs: Path, form: str, **options: Any) -> None:
    """Release the networks of RUN to the agents that infer (`edge-agent infer --broker`).

    Release to all, to some first (--canary), or take a release back (--rollback).

    Exits with 8 if a canary is not promoted, or was rolled back.
    """
    with plainly("release"):
        from coordinator.release.rollout import ReleaseRequest, release_run

        result = release_run(ReleaseRequest(**options), runs, say=speaker(form))
        if form == "json":
            click.echo(json.dumps(result))
        if "error" in result:
            raise ExportError(result["error"])
