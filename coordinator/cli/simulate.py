"""`coordinator simulate EXPERIMENT.toml`: run an experiment with a simulated fleet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from coordinator.cli.options import INIT, RUNS, config_flag, list_given, print_errors
from federated.runtime.console import FORMAT, print_result, speaker

__all__ = ["simulate"]


def parse_integers(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> list[int] | None:
    try:
        return None if text is None else [int(word) for word in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"expected whole numbers such as 0,1,2, found '{text}'") from None


def parse_workers(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> int | str | None:
    return int(text) if text and text.isdecimal() else text


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="EXPERIMENT.toml")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="setting of the experiment, such as train.lr=0.05; may be repeated",
)
@config_flag("--device", key="simulate.device", type=click.Choice(["cpu", "cuda"]))
@config_flag("--seeds", key="simulate.seeds", callback=parse_integers, metavar="0,1,2")
@INIT
@config_flag(
    "--workers", key="simulate.workers", callback=parse_workers, metavar="N|ray://HOST:PORT"
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="folder of results and plots  [default: results/NAME]",
)
@click.option("--resume", is_flag=True, help="resume interrupted runs, and skip finished ones")
@RUNS
@FORMAT
def simulate(
    file: Path,
    settings: tuple[str, ...],
    out: Path | None,
    resume: bool,
    runs: Path,
    form: str,
    **flags: Any,
) -> None:
    """Simulate the fleet of an experiment, here or on a Ray cluster.

    The simulation runs the same rounds and methods as a real fleet. To run the experiment on a real
    fleet, pass the file to `coordinator start --config`.
    """
    with print_errors("simulate"):
        from coordinator.run.config_sources import ConfigSources
        from coordinator.simulate.simulation import simulate as run_simulation

        sources = ConfigSources(file, os.environ, settings, list_given(flags))
        result = run_simulation(sources, runs, out, resume=resume, say=speaker(form))
        print_result(result, form)
