"""What the commands of `coordinator` have in common."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import click

from federated.runtime.console import speaking_plainly

__all__ = ["RUNS", "plainly"]

RUNS = click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    metavar="DIR",
    help="where runs are kept",
)

# else nothing is kept
RESUMABLE = {
    "simulate": "; go on later with --resume",
    "start": "; go on later with --resume, if a round had begun",
}


def plainly(command: str) -> AbstractContextManager[None]:
    """Errors of a command in plain words; see `federated.runtime.console.speaking_plainly`."""
    return speaking_plainly(
        f"coordinator {command}", "coordinator,export", "interrupted" + RESUMABLE.get(command, "")
    )
