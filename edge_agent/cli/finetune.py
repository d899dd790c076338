"""Define the command `edge-agent finetune` and its options; `edge_agent.finetune` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edge_agent.cli.flags import RUN, STORE, WAIT_FOR_RELEASE, own_data, print_errors
from federated.errors import UsageError
from federated.runtime.console import FORMAT, FiniteRange, speaker

__all__ = ["finetune"]


@click.command()
@click.option(
    "--broker", metavar="HOST|URL", help="download this agent's released network from a broker"
)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="use the release in this folder",
)
@RUN
@click.option(
    "--name",
    metavar="ID",
    help="agent whose submodel to use  [default: this host's first agent]",
)
@click.option("--submodel", metavar="NAME", help="use this submodel instead of the agent's own")
@STORE
@WAIT_FOR_RELEASE
@own_data("this device's own data")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="folder to write the adapted network to, for `edge-agent infer --model`",
)
@click.option(
    "--epochs",
    type=click.IntRange(1, 10_000),
    default=3,
    show_default=True,
    metavar="N",
    help="epochs over this device's training data",
)
@click.option(
    "--steps",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="maximum number of steps; 0: all steps of the epochs  [default: 0]",
)
@click.option(
    "--batch",
    type=click.IntRange(2, 65536),
    default=32,
    show_default=True,
    metavar="N",
    help="examples per step",
)
@click.option(
    "--lr",
    type=FiniteRange(0, 100, min_open=True),
    default=0.01,
    show_default=True,
    metavar="RATE",
    help="learning rate",
)
@click.option(
    "--only",
    type=click.Choice(["all", "head"]),
    default="all",
    show_default=True,
    help="layers to train; head: the last layer",
)
@click.option(
    "--network",
    metavar="module:function",
    default="",
    help="allow the release to use this network of your own",
)
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    metavar="N",
    help="number of threads; 0: PyTorch chooses  [default: 0]",
)
@click.option(
    "--keep-anyway",
    "anyway",
    is_flag=True,
    help="write the adapted network even if it did not improve",
)
@FORMAT
def finetune(name: str | None, form: str, **options: Any) -> None:
    """Adapt the released network to this device's own data.

    The adapted network is compared with the released one on held-out data, and discarded if it is
    not better. Nothing is sent. Requires PyTorch. The extra `export` is also required to write
    graphs for `edge-agent infer`.
    """
    with print_errors("finetune"):
        from edge_agent.access.broker_credentials import resolve_broker
        from edge_agent.cli.option_values import check_agent_name, rename_data_options
        from edge_agent.finetune.adaptation import FinetuneRequest, run_finetune

        if not options["data"]:
            raise UsageError("--data is missing: set it to this device's own data")
        options["broker"], name = resolve_broker(options["broker"], name)
        request = FinetuneRequest(name=check_agent_name(name), **rename_data_options(options))
        speaker("text")(run_finetune(request, form, speaker("json")))
