"""The command `coordinator simulate`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from coordinator.cli.options import INIT, RUNS, plainly
from federated.runtime.console import FORMAT, speaker

__all__ = ["simulate"]


def whole_numbers(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> list[int] | None:
    try:
        return None if text is None else [int(word) for word in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"expected whole numbers such as 0,1,2, found '{text}'") from None


SIMULATED = {
    "device": "simulate.device",
    "seeds": "simulate.seeds",
    "workers": "simulate.workers",
    "init": "model.init",
}


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="EXPERIMENT.toml")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="any key of the experiment, such as train.lr=0.05",
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="where devices train  [default: cpu]"
)
@click.option(
    "--seeds",
    callback=whole_numbers,
    metavar="0,1,2",
    help="one run each  [default: the experiment's own]",
)
@INIT
@click.option(
    "--workers",
    type=int,
    metavar="N",
    help="processes that train  [default: one per processor; with cuda 4 at most]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="where results and pictures go  [default: results/NAME]",
)
@click.option("--resume", is_flag=True, help="go on with what is not finished")
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
    """Simulate an experiment's fleet on this machine, with the rounds and methods of `start`.

    `coordinator start --config EXPERIMENT.toml` starts a real fleet from the same file.
    """
    with plainly("simulate"):
        from coordinator.run.config_sources import ConfigSources
        from coordinator.simulate.simulation import simulate as run_simulation

        given = [(SIMULATED[flag], value) for flag, value in flags.items() if value is not None]
        sources = ConfigSources(file, os.environ, settings, given)
        result = run_simulation(sources, runs, out, resume=resume, say=speaker(form))
        if form == "json":
            click.echo(json.dumps(result))
