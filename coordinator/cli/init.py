"""`coordinator init`: write a configuration file with every setting explained."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import config_flag, print_errors, write_new
from federated.defaults import METHOD

__all__ = ["init_command"]


@click.command("init")
@config_flag(
    "--method",
    key="method.name",
    metavar="NAME|module:function",
    help="include the settings of this method",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="run.toml",
    help="new file to write to  [default: standard output]",
)
def init_command(method: str | None, out: Path | None) -> None:
    """Write a configuration file with every setting explained.

    All settings in it have their default values. To start a run from it, run `coordinator start
    --config run.toml`.
    """
    with print_errors("init"):
        from coordinator.views.config_schema import render_template

        text = render_template(method or METHOD)
        if out is None:
            click.echo(text, nl=False)
        else:
            write_new(out, text)
