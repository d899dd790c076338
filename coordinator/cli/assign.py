"""`coordinator assign`: show which submodel each measured device would get, without a broker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from coordinator.cli.options import config_flag, list_given, print_errors
from federated.runtime.console import FORMAT, print_result, show_progress

__all__ = ["assign"]


@click.command()
@click.option(
    "--profile",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    metavar="FILE",
    help="profile of a device, from `edge-agent profile --out`; may be repeated",
)
@config_flag("--model", key="model.name", metavar="NAME|module:function", help="largest network")
@config_flag("--method", key="method.name", metavar="NAME|module:function", help="federated method")
@config_flag(
    "--data",
    key="data.name",
    metavar="NAME|PATH",
    help="data set; only the shape of its examples is used  [default: the data of the profiles]",
)
@config_flag("--data-root", key="data.root", metavar="DIR")
@click.option(
    "--examples",
    type=click.IntRange(min=1),
    metavar="N",
    help="number of examples on each device  [default: that of its profile]",
)
@config_flag("--deadline", key="fleet.deadline", type=float, metavar="SECONDS")
@config_flag("--select", key="fleet.select", metavar="EXPR")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="run.toml",
    help="configuration of a run; flags and --set override it",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="setting of the configuration, such as method.widths=[0.5,1.0]; may be repeated",
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
    """Show which submodel each profiled device would get.

    List every submodel with its predicted time and memory on each device, and the reason for the
    choice. No broker and no connected device is needed.
    """
    with print_errors("assign"):
        from coordinator.run.config_sources import ConfigSources
        from coordinator.simulate.offline_assignment import assign_offline, render

        sources = ConfigSources(file, os.environ, settings, list_given(flags))
        with show_progress("predicting times and memory"):
            found = assign_offline(files, sources, examples)
        print_result(found, form, render)
