"""The command `edge-agent infer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edge_agent.cli.flags import RUN, STORE, plainly, with_own_data
from federated.runtime.console import FORMAT
from federated.runtime.logs import logged

__all__ = ["infer"]


@click.command()
@click.option(
    "--broker", metavar="HOST|URL", help="take this agent's released network from a broker"
)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="FILE|FOLDER",
    help="use an exported .onnx file, or a release's folder",
)
@RUN
@click.option(
    "--name", metavar="ID", help="the agent whose submodel to take  [default: this host's first]"
)
@click.option("--submodel", metavar="NAME", help="take this submodel instead of the agent's own")
@click.option("--sha256", metavar="HEX", help="refuse --model FILE unless this is its digest")
@STORE
@click.option(
    "--wait",
    type=float,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="how long to wait for a release",
)
@click.option("--resize", is_flag=True, help="scale pictures to the size that the network takes")
@click.option(
    "--explain",
    is_flag=True,
    help="tell which ways to run the network were tried, and why one was chosen",
)
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    help="threads of one answer  [default: as many as are fastest]",
)
@click.option(
    "--serve",
    metavar="HOST:PORT",
    help="answer over HTTP until stopped: POST /infer, GET /health, GET /release",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="a secret that askers must send; needed beyond this machine",
)
@click.option(
    "--mqtt",
    is_flag=True,
    help="answer at the broker until stopped; it says at which topic it is asked",
)
@with_own_data
@click.argument("inputs", nargs=-1, type=click.Path(path_type=Path))
@FORMAT
@logged
def infer(name: str | None, form: str, **options: Any) -> None:
    """Infer on INPUTS with the network that a run released to this agent. INPUTS are .npy, .npz,
    .json or .jsonl files of raw examples, pictures, or folders of them; without any, JSON is read
    from standard input.

    A release is tested first, and of all ways to run it on this device the fastest correct one is
    used. With --serve or --mqtt it follows the broker's releases, and answers until it is stopped.
    --data names this device's own data: its held-out part judges releases. Needs no PyTorch.
    """
    with plainly("infer"):
        from edge_agent.access.admission import admitted
        from edge_agent.cli.given import agent_name, own_data, stop_on_signals
        from edge_agent.infer.infer_command import InferRequest, infer

        options["broker"], name = admitted(options["broker"], name, lasting=True)
        request = InferRequest(name=agent_name(name), **own_data(options))
        text = infer(
            request,
            form,
            lambda line: click.echo(line, err=True),
            stop_on_signals() if request.serves else None,
        )
        if text:
            click.echo(text)
