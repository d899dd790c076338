"""What both commands have in common: plain errors, and the choice between words and JSON."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from federated.errors import EspalierError, MissingExtra

__all__ = ["FORMAT", "Say", "speaker", "speaking_plainly", "terminable"]

Say = Callable[[str], None]  # shows a line to a person

FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: the result as the last line",
)


def speaker(form: str) -> Say:
    """Where words for people go: standard error when standard output belongs to the JSON result."""
    return lambda text: click.echo(text, err=form == "json")


@contextmanager
def speaking_plainly(command: str, extra: str, interrupted: str) -> Iterator[None]:
    """Errors that a person can mend end the command with their text and their exit code, not with a
    traceback.

    extra: what to install where a package is missing. interrupted: what to say at ctrl-C.
    """
    try:
        yield
    except EspalierError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        missing = MissingExtra(command, extra, error.name or "")
        click.echo(f"error: {missing}", err=True)
        sys.exit(missing.exit_code)
    except KeyboardInterrupt:
        click.echo(interrupted, err=True)
        sys.exit(130)


@contextmanager
def terminable() -> Iterator[None]:
    """A service manager's SIGTERM is answered as ctrl-C is, so that what must be tidied up is. Only
    the main thread can hear it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
