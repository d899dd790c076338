"""Define options that several subcommands of `coordinator` share, and functions to print results
and errors and to create files.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from federated.errors import ConfigError, StoreError
from federated.runtime.console import print_result, report_errors

__all__ = [
    "FILE",
    "INIT",
    "PKI",
    "RUNS",
    "check_new",
    "config_flag",
    "list_given",
    "print_answer",
    "print_errors",
    "write_new",
]


class ConfigOption(click.Option):
    """A flag for a key of a run's configuration. Its help is the description and the default of the
    key, which is imported only to show the help.
    """

    def __init__(self, *names: Any, key: str, **options: Any) -> None:
        super().__init__(*names, **options)
        self.key = key

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from coordinator.settings.config import describe_key

        record = super().get_help_record(ctx)
        if record is None:
            return None
        flag, own = record
        description, default = describe_key(self.key)
        first, second = description[:1], description[1:2]
        lowered = first if second.isupper() else first.lower()  # other help texts begin so, too
        text = own or lowered + description[1:].rstrip(".")
        if default in (None, "", ()) or isinstance(default, bool) or "[default: " in text:
            return flag, text
        shown = f"{default:g}" if isinstance(default, float) else default
        return flag, f"{text}  [default: {shown}]".lstrip()


def config_flag(*names: str, key: str, **options: Any) -> Callable[[Any], Any]:
    """Return a flag that sets a key of the configuration. help: replaces the key's description; it
    may end with a default that only this command has.
    """
    return click.option(*names, cls=ConfigOption, key=key, **options)


def list_given(flags: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the configuration keys that the user set with flags of the current command, with their
    values.
    """
    parameters = click.get_current_context().command.params
    keys = {one.name: one.key for one in parameters if isinstance(one, ConfigOption)}
    return [(keys[flag], value) for flag, value in flags.items() if value not in (None, ())]


FILE = click.Path(dir_okay=False, path_type=Path)
INIT = config_flag("--init", key="model.init", metavar="CHECKPOINT")
PKI = config_flag(
    "--pki", key="broker.pki", envvar="ESPALIER_BROKER__PKI", default="", metavar="DIR"
)
RUNS = click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    metavar="DIR",
    help="folder of runs",
)


@contextmanager
def print_errors(command: str) -> Iterator[None]:
    """Report errors in plain words; see `federated.runtime.console.report_errors`."""
    with report_errors(f"coordinator {command}", "coordinator,export"):
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"the run's database cannot be read: {error}; list the damage with: coordinator "
                "check RUN"
            ) from error


def print_answer(folder: Path, what: str, form: str) -> None:
    """Print what a run does after a request."""
    print_result({"run": folder.name, "asked": what}, form, lambda _: f"run '{folder.name}' {what}")


def check_new(file: Path) -> None:
    """Raise ConfigError if a file exists, or its folder does not, before work that takes long."""
    if file.is_dir():
        raise ConfigError(f"--out {file}: this is a folder: add the name of a new file")
    if file.exists():
        raise ConfigError(f"--out {file}: the file exists: choose another name")
    if not file.parent.is_dir():
        raise ConfigError(f"--out {file}: {file.parent} is not a folder: choose another name")


def write_new(file: Path, text: str) -> None:
    """Write a file that does not exist yet. Raises ConfigError."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        check_new(file)
        raise ConfigError(f"--out {file}: cannot be written: {error.strerror}") from error
