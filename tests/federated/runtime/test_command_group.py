"""A lazy group imports a command's module only when the command runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main as benchmarks
from coordinator.cli import main as coordinator
from coordinator.cli.options import ConfigOption
from coordinator.gateway.command import main as gateway
from edge_agent.cli import main as edge_agent
from federated.runtime.console import LazyCommand, LazyGroup

MAINS = [coordinator.main, edge_agent.main, benchmarks]
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


def test_an_unknown_command_is_a_usage_error_that_names_the_nearest(group: LazyGroup) -> None:
    done = CliRunner().invoke(group, ["great"])
    assert done.exit_code == 2
    assert "'great'" in done.output
    assert "'greet'" in done.output


@pytest.mark.parametrize(
    ("main", "mistyped", "nearest"),
    [
        (coordinator.main, "strat", "start"),
        (edge_agent.main, "doktor", "doctor"),
        (benchmarks, "flods", "floods"),
    ],
)
def test_every_program_suggests_the_nearest_command(
    main: LazyGroup, mistyped: str, nearest: str
) -> None:
    assert f"'{nearest}'" in CliRunner().invoke(main, [mistyped]).output


@pytest.mark.parametrize("main", MAINS, ids=["coordinator", "agent", "benchmarks"])
def test_no_line_of_the_list_of_commands_is_cut(main: LazyGroup) -> None:
    text = main.get_help(click.Context(main, terminal_width=80))
    lines = text.partition("Commands:")[2].splitlines()
    assert len(lines) > len(main.lazy)
    assert [line for line in lines if line.endswith("...")] == []


@pytest.mark.parametrize("main", MAINS, ids=["coordinator", "agent", "benchmarks"])
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


@pytest.mark.parametrize(
    ("program", "typed", "found"),
    [
        ("coordinator", "coordinator sta", "plain,status"),
        ("coordinator", "coordinator start --min", "plain,--min-agents"),
        ("edge_agent", "edge-agent join --limit-c", "plain,--limit-cpus"),
    ],
)
def test_shell_completion_loads_neither_torch_nor_numpy(
    program: str, typed: str, found: str
) -> None:
    name, *words = typed.split()
    code = (
        f"import sys\nfrom {program}.cli.main import main\n"
        f"try: main(prog_name={name!r})\n"
        "finally: assert not {'numpy', 'torch'} & {*sys.modules}"
    )
    variables = {
        f"_{program.upper()}_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=True,
    )
    assert found in done.stdout.splitlines()


def list_numbers(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
    """Yield every option that is a number with a fraction, with the words of its command."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from list_numbers(found, f"{path} {name}")
    for one in command.params:
        if isinstance(one.type, type(click.FLOAT)) and not isinstance(one, ConfigOption):
            yield f"{path} {one.opts[0]}", one  # settings of a run are checked as a whole


def test_every_option_that_is_a_number_refuses_nan_and_infinity() -> None:
    mains = {"coordinator": coordinator.main, "edge-agent": edge_agent.main, "gateway": gateway}
    found = {
        path: one
        for name, main in {**mains, "benchmarks": benchmarks}.items()
        for path, one in list_numbers(main, name)
    }
    assert {"edge-agent join --wait", "coordinator stop --wait", "gateway --wait"} <= found.keys()
    accepted = list[str]()
    for path, one in found.items():
        for text in ("nan", "inf"):
            with suppress(click.BadParameter):
                accepted.append(f"{path} {one.type.convert(text, one, None)}")
    assert not accepted


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--wait", "nan", "expected a finite number, found nan"),
        ("--wait", "inf", "expected a finite number, found inf"),
        ("--limit-cpus", "0", "0.01<=x<=4096"),
    ],
)
def test_a_number_outside_its_range_is_a_usage_error(
    option: str, value: str, expected: str
) -> None:
    done = CliRunner().invoke(edge_agent.main, ["join", "--broker", "h", option, value])
    assert done.exit_code == 2
    assert f"'{option}'" in done.output
    assert expected in done.output
