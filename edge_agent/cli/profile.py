"""The command `edge-agent profile`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from edge_agent.cli.flags import DEVICE, LABEL, LIMIT_CPUS, LIMIT_MEMORY, plainly
from federated.runtime.console import FORMAT, speaker

__all__ = ["profile"]


@click.command()
@click.option(
    "--family",
    "families",
    metavar="NAME,...",
    default="",
    help="networks to time  [default: preresnet,mobilenet,vit]",
)
@click.option(
    "--model",
    metavar="NAME",
    default="",
    help="one network to time: a family and a preset, or module:function of your own",
)
@click.option(
    "--runtime",
    "runtimes",
    metavar="NAME,...",
    default="",
    help="torch (training steps), onnx (answers)  [default: both]",
)
@click.option(
    "--batch",
    type=click.IntRange(2, 65536),
    default=32,
    show_default=True,
    help="examples of a training step",
)
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    help="threads to time with  [default: as many as serve best]",
)
@click.option("--broker", metavar="HOST|URL", help="measure the way to this broker too")
@click.option(
    "--data",
    metavar="NAME|PATH|module:function",
    help="time with the device's own data  [default: random examples]",
)
@click.option("--data-root", metavar="DIR", help="where named data sets lie or are downloaded to")
@click.option("--name", metavar="ID", help="this agent's name  [default: made of the host's]")
@LABEL
@LIMIT_CPUS
@LIMIT_MEMORY
@DEVICE
@click.option("--fresh", is_flag=True, help="measure anew, whatever was measured before")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.json",
    help="write the sheet that coordinator assign reads",
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
    name: str | None,
    out: Path | None,
    form: str,
    **options: Any,
) -> None:
    """Measure this device: hardware, limits, and how fast it trains and infers. What was measured
    before is not measured again.
    """
    with plainly("profile"):
        from edge_agent.access.admission import admitted
        from edge_agent.cli.given import agent_name, make_job, words
        from edge_agent.join.inventory import Wanted, command

        broker, name = admitted(broker, name)
        given = {**options, "model": model, "shard": None, "partition": None, "seed": None}
        job = replace(make_job(agent_name(name), given), data=options["data"] or "")
        models = tuple(dict.fromkeys([*words(families), *words(model)]))
        text = command(
            job,
            Wanted(models, words(runtimes), batch, threads, broker or "", fresh),
            out,
            form,
            speaker(form),
        )
        if text:
            click.echo(text)
