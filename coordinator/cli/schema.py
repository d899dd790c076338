"""`coordinator schema`: print the JSON Schema of a run's configuration."""

from __future__ import annotations

import json

import click

from coordinator.cli.options import print_errors

__all__ = ["schema_command"]


@click.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of a run's configuration.

    Editors can use it to complete and validate TOML files.
    """
    with print_errors("schema"):
        from coordinator.views.config_schema import build_schema

        click.echo(json.dumps(build_schema(), indent=2))
