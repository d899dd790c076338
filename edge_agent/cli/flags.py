"""Options that several commands of `edge-agent` share; `edge_agent.cli.given` reads them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from federated.runtime.console import speaking_plainly

__all__ = [
    "DEVICE",
    "LABEL",
    "LIMIT_CPUS",
    "LIMIT_MEMORY",
    "RUN",
    "STORE",
    "plainly",
    "with_own_data",
]

LABEL = click.option(
    "--label",
    "labels",
    metavar="WORD",
    multiple=True,
    help="what you call this device, for a run to select by; may be repeated",
)
LIMIT_CPUS = click.option(
    "--limit-cpus",
    type=float,
    metavar="X",
    help="processors that training may use, fractions allowed",
)
LIMIT_MEMORY = click.option(
    "--limit-memory", metavar="SIZE", help="memory that training may use, such as 512MB"
)
DEVICE = click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True
)
RUN = click.option("--run", metavar="NAME", help="which run, where a broker has several")
STORE = click.option(
    "--store",
    type=click.Path(path_type=Path),
    default=Path("espalier-models"),
    show_default=True,
    metavar="DIR",
    help="where releases are kept",
)


def with_own_data(command: Callable[..., Any]) -> Callable[..., Any]:
    """The flags that name this device's own data."""
    for flag in (
        click.option("--seed", type=int, help="of the partition of --shard  [default: 0]"),
        click.option(
            "--partition",
            metavar="RULE",
            help="how the parts of --shard are drawn  [default: dirichlet:1.0]",
        ),
        click.option(
            "--shard",
            metavar="I/N",
            help="hold only the I-th (from 0) of N parts of a named data set",
        ),
        click.option(
            "--data-root", metavar="DIR", help="where named data sets lie or are downloaded to"
        ),
        click.option("--data", metavar="NAME|PATH|module:function", help="this device's own data"),
    ):
        command = flag(command)
    return command


def plainly(command: str) -> AbstractContextManager[None]:
    """Errors of a command in plain words; see `federated.runtime.console.speaking_plainly`."""
    return speaking_plainly(f"edge-agent {command}", "train", "interrupted")
