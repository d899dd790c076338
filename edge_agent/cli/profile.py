"""Define the command `edge-agent profile` and its options; `edge_agent.join.profile_command` does
the work.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from edge_agent.cli.flags import DATA_ROOT, DEVICE, LABEL, LIMIT_CPUS, LIMIT_MEMORY, print_errors
from federated.runtime.console import FORMAT, speaker

__all__ = ["profile"]


@click.command()
@click.option(
    "--family",
    "families",
    metavar="NAME,...",
    default="",
    help="families of networks to time  [default: preresnet,mobilenet,vit]",
)
@click.option(
    "--model",
    metavar="NAME",
    default="",
    help="network to time: a preset of a family, or module:function of your own",
)
@click.option(
    "--runtime",
    "runtimes",
    metavar="NAME,...",
    default="",
    help="runtimes to time: torch (training steps), onnx (inference)  [default: both]",
)
@click.option(
    "--batch",
    type=click.IntRange(2, 65536),
    default=32,
    show_default=True,
    metavar="N",
    help="examples per training step",
)
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    metavar="N",
    help="number of threads; 0: the fastest number  [default: 0]",
)
@click.option("--broker", metavar="HOST|URL", help="also measure the uplink to this broker")
@click.option(
    "--data",
    metavar="NAME|PATH|module:function",
    help="time with the device's own data  [default: random examples]",
)
@DATA_ROOT
@click.option(
    "--name", metavar="ID", help="this agent's name  [default: derived from the host name]"
)
@LABEL
@LIMIT_CPUS
@LIMIT_MEMORY
@DEVICE
@click.option("--fresh", is_flag=True, help="ignore cached measurements")
@click.option(
    "--compare-trainers",
    "compare",
    is_flag=True,
    help="also compare training with ONNX Runtime and with PyTorch, for `join --trainer auto`; "
    "exports a training step of each network, which takes seconds to minutes",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.json",
    help="also write the profile to this file, for `coordinator assign`",
)
@FORMAT
def profile(
    families: str,
    model: str,
    runtimes: str,
    batch: int,
    threads: int,
    broker: str | None,
    fresh: bool,
    compare: bool,
    name: str | None,
    out: Path | None,
    form: str,
    **options: Any,
) -> None:
    """Measure this device's hardware, limits and speed.

    Measurements are cached.
    """
    with print_errors("profile"):
        from edge_agent.access.broker_credentials import resolve_broker
        from edge_agent.cli.option_values import check_agent_name, make_job, split_words
        from edge_agent.join.profile_command import ProfileRequest, profile_device

        broker, name = resolve_broker(broker, name)
        given = {**options, "model": model, "shard": None, "partition": None, "seed": None}
        job = replace(make_job(check_agent_name(name), given), data=options["data"] or "")
        models = tuple(dict.fromkeys([*split_words(families), *split_words(model)]))
        request = ProfileRequest(
            models, split_words(runtimes), batch, threads, broker or "", fresh, compare
        )
        if text := profile_device(job, request, out, form, speaker(form)):
            click.echo(text)
