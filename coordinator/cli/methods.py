"""The command `coordinator methods`."""

from __future__ import annotations

import json

import click

from coordinator.cli.options import plainly
from federated.runtime.console import FORMAT

__all__ = ["methods"]


@click.command()
@click.argument("name", required=False)
@FORMAT
def methods(name: str | None, form: str) -> None:
    """List the federated methods and their papers, or explain NAME. The explanation lists its
    settings, their defaults, and which laws hold. NAME may be module:function.
    """
    with plainly("methods"):
        from coordinator.views.method_pages import described, listed, one_text, table_text

        if name is None:
            click.echo(json.dumps(listed()) if form == "json" else table_text(listed()))
        else:
            click.echo(json.dumps(described(name)) if form == "json" else one_text(described(name)))
