"""What several commands of `coordinator` share: options, output and errors."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from federated.runtime.console import speaking_plainly

__all__ = ["INIT", "PKI", "RUNS", "as_json", "plainly", "print_answer"]

INIT = click.option(
    "--init",
    metavar="CHECKPOINT",
    help="start from these weights: a run's checkpoint, a torchvision file, or torchvision:DEFAULT",
)
PKI = click.option(
    "--pki",
    envvar="ESPALIER_BROKER__PKI",
    default="",
    metavar="DIR",
    help="the authority's folder  [default: of this user's data]",
)
RUNS = click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    metavar="DIR",
    help="where runs are kept",
)

# other commands keep nothing that could be resumed
RESUMABLE = {
    "simulate": "; resume with --resume",
    "start": "; resume with --resume, if a round had begun",
}


def plainly(command: str) -> AbstractContextManager[None]:
    """Errors of a command in plain words; see `federated.runtime.console.speaking_plainly`."""
    return speaking_plainly(
        f"coordinator {command}", "coordinator,export", "interrupted" + RESUMABLE.get(command, "")
    )


def as_json(found: Any) -> str:
    """JSON on one line. Numbers that JSON cannot express are null."""
    import msgspec

    return msgspec.json.encode(found).decode()


def print_answer(folder: Path, what: str, form: str) -> None:
    """Print what a run was asked to do."""
    if form == "json":
        click.echo(as_json({"run": folder.name, "asked": what}))
    else:
        click.echo(f"run '{folder.name}' {what}")
