"""The command `coordinator assign`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from coordinator.cli.options import plainly
from federated.runtime.console import FORMAT

__all__ = ["assign"]

FLAGS = {  # flag -> key of the configuration
    "model": "model.name",
    "method": "method.name",
    "data": "data.name",
    "data_root": "data.root",
    "deadline": "fleet.deadline",
    "select": "fleet.select",
}


@click.command()
@click.option(
    "--profile",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    metavar="FILE",
    help="of edge-agent profile --out; may be repeated",
)
@click.option(
    "--model", metavar="NAME|module:function", help="the largest network  [default: preresnet]"
)
@click.option("--method", metavar="NAME|module:function", help="[default: fedfa]")
@click.option(
    "--data",
    metavar="NAME|PATH",
    help="for data of this shape  [default: what the devices were measured with]",
)
@click.option("--data-root", metavar="DIR", help="where named data sets lie or are downloaded to")
@click.option(
    "--examples",
    type=click.IntRange(min=1),
    metavar="N",
    help="that each device has  [default: as its profile says]",
)
@click.option(
    "--deadline",
    type=float,
    metavar="S",
    help="seconds of a round  [default: as these devices' measurements say]",
)
@click.option(
    "--select",
    metavar="EXPR",
    help="only devices that meet this, such as 'memory>=2GB and label=eu'",
)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="run.toml",
    help="a run's configuration; flags and --set go over it",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="any key of the configuration, such as method.widths=[0.5,1.0]",
)
@FORMAT
def assign(
    files: tuple[Path, ...],
    examples: int | None,
    file: Path | None,
    settings: tuple[str, ...],
    form: str,
    **flags: Any,
) -> None:
    """Show, without a broker or a fleet, which submodel each profiled device would get, and why.

    For each device it lists every submodel with its predicted time and memory.
    """
    with plainly("assign"):
        from coordinator.simulate.offline_assignment import assign_offline, text

        given = [(FLAGS[flag], value) for flag, value in flags.items() if value is not None]
        found = assign_offline(files, file, os.environ, settings, given, examples)
        click.echo(json.dumps(found) if form == "json" else text(found))
