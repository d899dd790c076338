"""`coordinator runs`: list all runs with method, model, rounds, accuracy and state."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from coordinator.cli.options import RUNS, print_errors
from federated.errors import ConfigError
from federated.runtime.console import FORMAT, print_result

__all__ = ["list_runs"]


@click.command("runs")
@RUNS
@FORMAT
def list_runs(runs: Path, form: str) -> None:
    """List all runs: method, model, rounds, accuracy and state."""
    with print_errors("runs"):
        given = click.get_current_context().get_parameter_source("runs")
        if given is not ParameterSource.DEFAULT and not runs.is_dir():
            raise ConfigError(f"--runs {runs}: {runs.absolute()} is not a folder")
        from coordinator.views.run_list import describe_runs, render_runs

        print_result(describe_runs(runs), form, lambda found: render_runs(found, runs))
