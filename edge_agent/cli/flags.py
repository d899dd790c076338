"""Define the options that several commands of `edge-agent` share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from federated.defaults import PARTITION, SEED
from federated.runtime.console import FiniteRange, report_errors

__all__ = [
    "CPUS",
    "DATA_ROOT",
    "DEVICE",
    "LABEL",
    "LIMIT_CPUS",
    "LIMIT_MEMORY",
    "RUN",
    "STORE",
    "WAIT_FOR_RELEASE",
    "own_data",
    "print_errors",
]

LABEL = click.option(
    "--label",
    "labels",
    metavar="WORD",
    multiple=True,
    help="label of this device, which a run can select; may be repeated",
)
CPUS = FiniteRange(min=0.01, max=4096)  # that a process may use
LIMIT_CPUS = click.option(
    "--limit-cpus",
    type=CPUS,
    metavar="X",
    help="number of processors that training may use, such as 1.5",
)
LIMIT_MEMORY = click.option(
    "--limit-memory", metavar="SIZE", help="memory that training may use, such as 512MB"
)
DEVICE = click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="processor to train on",
)
RUN = click.option("--run", metavar="NAME", help="name of the run, if the broker has several")
STORE = click.option(
    "--store",
    type=click.Path(path_type=Path),
    default=Path("espalier-models"),
    show_default=True,
    metavar="DIR",
    help="folder of downloaded releases",
)
WAIT_FOR_RELEASE = click.option(
    "--wait",
    type=FiniteRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="time to wait for a release at the broker",
)
DATA_ROOT = click.option(
    "--data-root", metavar="DIR", help="folder of named data sets; missing ones are downloaded"
)


def own_data(description: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options for this device's own data."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            click.option(
                "--seed", type=int, metavar="N", help=f"seed of --partition  [default: {SEED}]"
            ),
            click.option(
                "--partition",
                metavar="RULE",
                help="rule that divides the data for --shard: iid, dirichlet:ALPHA, classes:K, "
                f"users, ...  [default: {PARTITION}]",
            ),
            click.option(
                "--shard",
                metavar="I/N",
                help="use only part I of N parts of a named data set; I counts from 0",
            ),
            DATA_ROOT,
            click.option("--data", metavar="NAME|PATH|module:function", help=description),
        ):
            command = option(command)
        return command

    return decorate


def print_errors(command: str) -> AbstractContextManager[None]:
    """Print errors of a command as text; see `federated.runtime.console.report_errors`."""
    return report_errors(f"edge-agent {command}", "train")
