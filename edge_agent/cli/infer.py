"""Define the command `edge-agent infer` and its options; `edge_agent.infer` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edge_agent.cli.flags import RUN, STORE, WAIT_FOR_RELEASE, own_data, print_errors
from federated.runtime.console import FORMAT, speaker
from federated.runtime.logs import log_options

__all__ = ["infer"]


@click.command()
@click.option(
    "--broker", metavar="HOST|URL", help="download this agent's released network from a broker"
)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="FILE|FOLDER",
    help="use this exported .onnx file, or the release in this folder",
)
@RUN
@click.option(
    "--name",
    metavar="ID",
    help="agent whose submodel to use  [default: this host's first agent]",
)
@click.option("--submodel", metavar="NAME", help="use this submodel instead of the agent's own")
@click.option("--sha256", metavar="HEX", help="expected sha256 digest of --model FILE")
@STORE
@WAIT_FOR_RELEASE
@click.option("--resize", is_flag=True, help="scale images to the input size of the network")
@click.option(
    "--explain",
    is_flag=True,
    help="show the graph variants that were tried, and why one was chosen",
)
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    metavar="N",
    help="number of threads; 0: the fastest number  [default: 0]",
)
@click.option(
    "--serve",
    metavar="HOST:PORT",
    help="serve HTTP until stopped: POST /infer, GET /health, GET /release",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="file of the token that HTTP clients must send; required if other machines can connect",
)
@click.option(
    "--mqtt",
    is_flag=True,
    help="answer requests at the broker until stopped; prints the topic for requests",
)
@own_data("this device's own data")
@click.argument("inputs", nargs=-1, type=click.Path(path_type=Path))
@FORMAT
@log_options
def infer(name: str | None, form: str, **options: Any) -> None:
    """Run inference on INPUTS with a released network.

    INPUTS are .npy, .npz, .json or .jsonl files of raw examples, images, or folders of them.
    Without INPUTS, JSON is read from standard input.

    Each release is tested before it is used. The fastest variant of its graph that passes the
    accuracy check is used. With --serve or --mqtt, the command answers requests and installs new
    releases from the broker until it is stopped. With --data, releases are also tested on held-out
    examples of this device's own data. PyTorch is not required.
    """
    with print_errors("infer"):
        from edge_agent.access.broker_credentials import resolve_broker
        from edge_agent.cli.option_values import (
            check_agent_name,
            rename_data_options,
            stop_on_signals,
        )
        from edge_agent.infer.infer_command import infer
        from edge_agent.infer.infer_options import InferRequest

        options["broker"], name = resolve_broker(options["broker"], name, keep_renewing=True)
        request = InferRequest(name=check_agent_name(name), **rename_data_options(options))
        text = infer(
            request,
            form,
            speaker("json"),
            stop_on_signals() if request.serves else None,
        )
        if text:
            speaker("text")(text)
