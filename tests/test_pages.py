"""The commands that the pages tell people to type exist, with the flags that they are typed with,
and the files that they name are there.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from coordinator.cli.main import main as coordinator
from coordinator.settings.config import load
from edge_agent.cli.main import main as edge_agent

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "SECURITY.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("broker", "jetson", "operations", "pi")),
]
PROGRAMS = {"coordinator": coordinator, "edge-agent": edge_agent}


def typed(page: Path) -> list[list[str]]:
    """Every command of ours in a page, as words: in blocks, and between backticks where it has more
    than a name.
    """
    text = page.read_text()
    lines = re.findall(r"^ {4,}(.+)$", text, re.MULTILINE) + re.findall(
        r"`((?:coordinator|edge-agent) [^`]+)`", text
    )
    found = []
    for line in lines:
        words = shlex.split(line.split("#")[0].replace("'", " "), comments=False)
        if words and Path(words[0]).name in PROGRAMS and len(words) > 1:
            found.append([Path(words[0]).name, *words[1:]])
    return found


@pytest.mark.parametrize(
    ("page", "words"),
    [(page, words) for page in PAGES for words in typed(page)],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_that_a_page_names_exists(page: Path, words: list[str]) -> None:
    program, name, *rest = words
    command = PROGRAMS[program].get_command(click.Context(PROGRAMS[program]), name)
    assert command is not None, f"{page.name}: {' '.join(words)}"
    known = {
        flag
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    assert {word.split("=")[0] for word in rest if word.startswith("--")} <= known


def test_there_are_commands_to_try() -> None:
    assert sum(len(typed(page)) for page in PAGES) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"\b(?:deploy|tests|docs)/[\w./@-]+\w", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text):
        assert name.startswith("http") or (page.parent / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_configuration_that_a_page_shows_can_be_loaded(page: Path, tmp_path: Path) -> None:
    tables = load(None, {}, ())
    for table, key in re.findall(r"`\[(\w+)\] (\w+)", page.read_text()):
        assert hasattr(getattr(tables, table), key), f"[{table}] {key}"
    for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL):
        (tmp_path / "run.toml").write_text(block)
        assert load(tmp_path / "run.toml", {}, ()) != tables
