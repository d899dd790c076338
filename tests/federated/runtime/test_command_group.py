"""A lazy group imports a command's module only when the command runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from coordinator.cli import main as coordinator
from edge_agent.cli import main as edge_agent
from federated.runtime.console import LazyCommand, LazyGroup

GREET = """
import click

@click.command()
def greet():
    "Greet everybody. Loudly."
    click.echo("hello")
"""


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LazyGroup:
    (tmp_path / "greeting.py").write_text(GREET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "greeting", raising=False)
    return LazyGroup("try", lazy={"greet": LazyCommand("greeting:greet", "Greet everybody.")})


def test_its_help_lists_a_command_without_importing_it(group: LazyGroup) -> None:
    done = CliRunner().invoke(group, ["--help"])
    assert "  greet  Greet everybody.\n" in done.output
    assert "greeting" not in sys.modules


def test_a_command_that_is_called_is_imported(group: LazyGroup) -> None:
    assert CliRunner().invoke(group, ["greet"]).output == "hello\n"
    assert "greeting" in sys.modules


def test_an_unknown_command_is_a_usage_error_that_names_it(group: LazyGroup) -> None:
    done = CliRunner().invoke(group, ["great"])
    assert done.exit_code == 2
    assert "No such command 'great'" in done.output


@pytest.mark.parametrize("main", [coordinator.main, edge_agent.main], ids=["coordinator", "agent"])
@pytest.mark.parametrize("width", [50, 80, 200])
def test_the_help_is_that_of_a_group_whose_commands_are_imported(
    main: LazyGroup, width: int
) -> None:
    commands = {name: main.get_command(click.Context(main), name) for name in main.lazy}
    eager = click.Group(
        main.name,
        {name: command for name, command in commands.items() if command is not None},
        params=main.params,
        help=main.help,
        context_settings=main.context_settings,
    )
    assert len(eager.commands) == len(main.lazy)
    assert all(name == command.name for name, command in eager.commands.items())
    sized = {"terminal_width": width, "max_content_width": width, **main.context_settings}
    told = [one.get_help(click.Context(one, info_name="x", **sized)) for one in (main, eager)]
    assert told[0] == told[1]
