"""Console output of the commands: errors, and the choice between text and JSON."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from federated.errors import EspalierError, MissingExtra
from federated.safe_text import make_lines_safe

__all__ = ["FORMAT", "Say", "handle_sigterm", "report_errors", "speaker"]

Say = Callable[[str], None]  # prints a line

FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: the result as the last line",
)


def speaker(form: str) -> Say:
    """Return a function that prints lines, made safe to show: on standard error if standard output
    is for JSON.
    """
    return lambda text: click.echo(make_lines_safe(text), err=form == "json")


@contextmanager
def report_errors(command: str, extra: str, interrupted: str) -> Iterator[None]:
    """End the command after an expected error with its message and exit code, without a traceback.

    extra: the extra to install if a package is missing.
    interrupted: message after ctrl-C.
    """
    try:
        yield
    except EspalierError as error:
        click.echo(f"error: {make_lines_safe(str(error))}", err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        missing = MissingExtra(command, extra, error.name or "")
        click.echo(f"error: {missing}", err=True)
        sys.exit(missing.exit_code)
    except KeyboardInterrupt:
        click.echo(interrupted, err=True)
        sys.exit(130)


@contextmanager
def handle_sigterm() -> Iterator[None]:
    """Treat SIGTERM of a service manager like ctrl-C, so that clean-up code runs. It has no effect
    outside the main thread, which alone gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
