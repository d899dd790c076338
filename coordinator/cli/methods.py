"""The command `coordinator methods`."""

from __future__ import annotations

import json

import click

from coordinator.cli.options import print_errors
from federated.runtime.console import FORMAT

__all__ = ["methods"]


@click.command()
@click.argument("name", required=False)
@FORMAT
def methods(name: str | None, form: str) -> None:
    """List the federated methods and their papers, or explain NAME.

    The explanation lists the method's settings, their defaults, and the laws that it satisfies.
    NAME may be module:function.
    """
    with print_errors("methods"):
        from coordinator.views.method_pages import (
            describe_method,
            list_methods,
            render_list,
            render_method,
        )

        if name is None:
            click.echo(
                json.dumps(list_methods()) if form == "json" else render_list(list_methods())
            )
        else:
            click.echo(
                json.dumps(describe_method(name))
                if form == "json"
                else render_method(describe_method(name))
            )
