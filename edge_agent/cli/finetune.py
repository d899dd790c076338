"""The command `edge-agent finetune`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edge_agent.cli.flags import RUN, STORE, plainly, with_own_data
from federated.errors import UsageError
from federated.runtime.console import FORMAT

__all__ = ["finetune"]


@click.command()
@click.option(
    "--broker", metavar="HOST|URL", help="take this agent's released network from a broker"
)
@click.option(
    "--model", type=click.Path(path_type=Path), metavar="FOLDER", help="use a release's folder"
)
@RUN
@click.option(
    "--name", metavar="ID", help="the agent whose submodel to take  [default: this host's first]"
)
@click.option("--submodel", metavar="NAME", help="take this submodel instead of the agent's own")
@STORE
@click.option(
    "--wait",
    type=float,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="how long to wait for a release",
)
@with_own_data
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="where the adapted network goes, for infer --model DIR",
)
@click.option(
    "--epochs",
    type=click.IntRange(1, 10_000),
    default=3,
    show_default=True,
    help="passes over this device's training part",
)
@click.option(
    "--steps",
    type=click.IntRange(0),
    default=0,
    help="at most so many steps  [default: as many as the passes have]",
)
@click.option(
    "--batch",
    type=click.IntRange(2, 65536),
    default=32,
    show_default=True,
    help="examples of a step",
)
@click.option(
    "--lr",
    type=click.FloatRange(0, 100, min_open=True),
    default=0.01,
    show_default=True,
    help="learning rate",
)
@click.option(
    "--only",
    type=click.Choice(["all", "head"]),
    default="all",
    show_default=True,
    help="head: the last layer alone learns",
)
@click.option(
    "--network",
    metavar="module:function",
    default="",
    help="a network of your own, where the release is of one of that name",
)
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    help="threads to train with  [default: as PyTorch chooses]",
)
@click.option(
    "--keep-anyway",
    "anyway",
    is_flag=True,
    help="write the adapted network also where it is no better",
)
@FORMAT
def finetune(name: str | None, form: str, **options: Any) -> None:
    """Adapt the released network to this device's own data, and compare it with the one before.

    The comparison uses data that it was not trained on. Nothing is sent, and a network that is no
    better is not written. Needs PyTorch, and the extra export to write what infer serves.
    """
    with plainly("finetune"):
        from edge_agent.access.admission import admitted
        from edge_agent.cli.given import agent_name, own_data
        from edge_agent.finetune.finetune import Request, command

        if not options["data"]:
            raise UsageError("--data is missing: name this device's own data")
        options["broker"], name = admitted(options["broker"], name)
        click.echo(
            command(
                Request(name=agent_name(name), **own_data(options)),
                form,
                lambda line: click.echo(line, err=True),
            )
        )
