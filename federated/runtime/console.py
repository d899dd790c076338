"""Report errors, print results as text or JSON, and import commands only when used, for all command
lines of the project.
"""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click
import msgspec

from federated.errors import ConfigError, EspalierError, MissingExtra
from federated.safe_text import make_lines_safe

__all__ = [
    "FORMAT",
    "FiniteRange",
    "LazyCommand",
    "LazyGroup",
    "Say",
    "handle_sigterm",
    "print_result",
    "report_errors",
    "show_progress",
    "speaker",
]

log = logging.getLogger(__name__)

Say = Callable[[str], None]  # prints a line

FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="format of the result; json: one line at the end",
)


class FiniteRange(click.FloatRange):
    """A range that contains neither infinity nor NaN, which no comparison excludes. The type of all
    options that are numbers, but settings of a run, which are checked with all others.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"expected a finite number, found {value}", param, ctx)
        return found


def speaker(form: str) -> Say:
    """Return a function that prints lines, made safe to show: on standard error if standard output
    is for JSON.
    """
    return lambda text: click.echo(make_lines_safe(text), err=form == "json")


def print_result(found: Any, form: str, render: Callable[[Any], str] | None = None) -> None:
    """Print a result as one line of JSON, in which numbers that are not finite become null, or as
    text. render: makes the text; None prints none.
    """
    if form == "json":
        click.echo(msgspec.json.encode(found).decode())
    elif render is not None:
        click.echo(render(found))


@contextmanager
def show_progress(label: str, *, of_bytes: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal that a step takes time: a spinner, or a bar once it is known how much is
    done. Yield the function that sets it, of the number that is done and the total.

    of_bytes: these are numbers of bytes.

    The line disappears at the end. Lines printed in the meantime appear above it.
    """
    if not sys.stdout.isatty():
        yield lambda done, total: None
        return
    # imported here, because most commands show none
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
    )
    from rich.progress import TimeElapsedColumn as Elapsed

    spinner = (SpinnerColumn(), TextColumn("{task.description}", markup=False), Elapsed())
    with Progress(*spinner, transient=True) as progress:
        task = progress.add_task(make_lines_safe(label), total=None)

        def show(done: int, total: int) -> None:
            count = DownloadColumn() if of_bytes else MofNCompleteColumn()
            progress.columns = (*spinner, BarColumn(), count)
            progress.update(task, completed=done, total=total)

        yield show


@contextmanager
def report_errors(command: str, extra: str) -> Iterator[None]:
    """End the command after an expected error with its message and exit code, without a traceback.
    Any error of an extension's code is expected.

    extra: the extra to install if a package is missing.

    Ctrl-C ends it with the text of the KeyboardInterrupt, which code that catches it may set.
    """
    try:
        yield
    except EspalierError as error:
        click.echo(f"error: {make_lines_safe(error.on_command_line or str(error))}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt as why:
        click.echo(str(why) or "interrupted", err=True)
        sys.exit(130)
    except Exception as error:
        # imported here, because most commands need no extension
        from models.extension_lookup import find_failed_module, locate_failure

        module, extension = find_failed_module(error)
        if not module and isinstance(error, ModuleNotFoundError):
            missing = MissingExtra(command, extra, error.name or "")
            click.echo(f"error: {missing}", err=True)
            sys.exit(missing.exit_code)
        if not module:
            raise
        log.debug("the extension module '%s' failed", extension, exc_info=error)
        inner = "" if module == extension else f"in its module '{module}' "
        text = f"the extension module '{extension}' failed {inner}{locate_failure(error)}"
        click.echo(f"error: {make_lines_safe(text)}", err=True)
        sys.exit(ConfigError.exit_code)


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


@dataclass(frozen=True)
class LazyCommand:
    """A command that is not imported yet.

    where: `module:name` of the `click.Command`.
    help: the first sentence of its help, for the help of the group.
    """

    where: str
    help: str


class LazyGroup(click.Group):
    """A group that shows the help of its `LazyCommand`s without importing them."""

    def __init__(
        self, name: str | None = None, *, lazy: Mapping[str, LazyCommand], **options: Any
    ) -> None:
        # click lists these, and suggests the nearest name for a mistyped one
        listed = {name: click.Command(name, help=one.help) for name, one in lazy.items()}
        super().__init__(name, listed, **options)
        self.lazy = lazy

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _, name = self.lazy[cmd_name].where.partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, self.lazy))
        rows = [
            (name, self.commands[name].get_short_help_str(limit))
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
