"""The command `coordinator init`."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import plainly
from federated.errors import ConfigError

__all__ = ["init_command"]


@click.command("init")
@click.option(
    "--method",
    metavar="NAME|module:function",
    help="With the settings of this method  [default: fedfa]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="run.toml",
    help="Write to this new file  [default: standard output]",
)
def init_command(method: str | None, out: Path | None) -> None:
    """Write a configuration with every setting, its default and an explanation.

    Start a run from it by `coordinator start --config run.toml`.
    """
    with plainly("init"):
        from coordinator.settings.config import METHOD
        from coordinator.settings.template import template

        text = template(method or METHOD)
        if out is None:
            click.echo(text, nl=False)
        else:
            write_new(out, text)


def write_new(file: Path, text: str) -> None:
    """Write a file that does not exist yet. Raises ConfigError."""
    try:
        with file.open("x") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise ConfigError(f"--out {file}: the file exists: choose another name") from error
    except OSError as error:
        raise ConfigError(f"--out {file}: cannot be written: {error.strerror}") from error
