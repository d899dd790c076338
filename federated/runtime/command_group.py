"""A group of commands that imports the module of a command only when the command runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

__all__ = ["LazyCommand", "LazyGroup"]


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

    def __init__(self, *given: Any, lazy: Mapping[str, LazyCommand], **options: Any) -> None:
        super().__init__(*given, **options)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.lazy)

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
            (name, click.Command(name, help=self.lazy[name].help).get_short_help_str(limit))
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
