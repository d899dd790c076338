"""What both commands have in common: plain errors, one way to log, and the choice between words and JSON."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import click

from federated.errors import EspalierError, MissingExtra

__all__ = ["FORMAT", "configure_logging", "speaker", "speaking_plainly", "terminable"]

FORMAT = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="json: the result as the last line"
)


class Present(logging.StreamHandler[TextIO]):
    """Writes to whatever standard error is at the moment: a live display puts itself in its place, to keep lines above the table."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def configure_logging(*, verbose: bool) -> None:
    """Logs to standard error, one line each, for a person or a service to collect."""
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(handlers=[Present()], level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def speaker(form: str) -> Callable[[str], None]:
    """Where words for people go: standard error when standard output belongs to the JSON result."""
    return lambda text: click.echo(text, err=form == "json")


@contextmanager
def speaking_plainly(command: str, extra: str, interrupted: str) -> Iterator[None]:
    """Errors that a person can mend end the command with their text and their exit code, not with a traceback.

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
    """A service manager's SIGTERM is answered as ctrl-C is, so that what must be tidied up is. Only the main thread can hear it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
