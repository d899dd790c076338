"""`coordinator release RUN`: release the networks of a run to the agents that infer with them, or
withdraw a release.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from coordinator.cli.options import RUNS, print_errors
from federated.errors import ExportError
from federated.runtime.console import FORMAT, FiniteRange, print_result, speaker

__all__ = ["release"]


@click.command()
@click.argument("run")
@click.option(
    "--broker",
    metavar="HOST|URL",
    help="address of the agents' broker  [default: the one of the run, as its coordinator reaches "
    "it; with --status, none is asked]",
)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="folder of `coordinator export` to release  [default: export the last round now]",
)
@click.option(
    "--files-at",
    metavar="URL",
    help="folder on a web server or CDN that has the files of --bundle: agents download them there "
    "instead of from the broker",
)
@click.option(
    "--canary",
    "share",
    metavar="10%|N|NAME,NAME",
    help="release to some agents first: a percentage, a number, or names",
)
@click.option(
    "--promote",
    is_flag=True,
    help="release the canary to all agents if its agents report success; with --canary: wait for "
    "the reports, then promote or roll back",
)
@click.option(
    "--rollback",
    is_flag=True,
    help="withdraw the canary, or the last release if there is no canary",
)
@click.option(
    "--status",
    is_flag=True,
    help="only show the current release and the reports of agents: with --broker the present ones, "
    "else those that the last command received",
)
@click.option(
    "--wait",
    type=FiniteRange(min=0),
    metavar="SECONDS",
    help="time to wait for reports of agents  [default: 60 with --canary, else 15; returns as "
    "soon as all agents that serve have reported]",
)
@click.option(
    "--force",
    is_flag=True,
    help="promote regardless of reports, or release a version again that was rolled back",
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="raw examples to check the networks with: .npz with x, and y if known  [default: the "
    "run's data]",
)
@RUNS
@FORMAT
def release(runs: Path, form: str, **options: Any) -> None:
    """Release the networks of RUN to agents that infer.

    The agents that run `edge-agent infer --broker` install the release. With --canary, only some of
    them do so first. --rollback withdraws a release.

    The exit code is 8 if a canary is not promoted or was rolled back, if an agent refuses a version
    that a rollback restores, and if all agents refuse a release.
    """
    with print_errors("release"):
        from coordinator.release.release_request import ReleaseRequest
        from coordinator.release.rollout import release_run

        result = release_run(ReleaseRequest(**options), runs, say=speaker(form))
        print_result(result, form)
        if "error" in result:
            raise ExportError(result["error"])
