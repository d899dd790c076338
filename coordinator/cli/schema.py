"""The command `coordinator schema`."""

from __future__ import annotations

import json

import click

from coordinator.cli.options import plainly

__all__ = ["schema_command"]


@click.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of a run's configuration, for editors and checkers of TOML files."""
    with plainly("schema"):
        from coordinator.settings.schema import schema

        click.echo(json.dumps(schema(), indent=2))
