"""Tests that the commands, flags, files and configurations in the documentation exist and are
valid.
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
    ROOT / "CONTRIBUTING.md",
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("broker", "devices", "jetson", "methods", "operations", "pi")
    ),
]
FOLDERS = "benchmarks|coordinator|deploy|docs|edge_agent|export|federated|models|tests"
PROGRAMS = {"coordinator": coordinator, "edge-agent": edge_agent}


def find_commands(page: Path) -> list[list[str]]:
    """Return the commands of `coordinator` and `edge-agent` in a page, each as words: those in code
    blocks, and those between backticks that have more than a name.
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
    [(page, words) for page in PAGES for words in find_commands(page)],
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


def test_the_pages_contain_commands() -> None:
    assert sum(len(find_commands(page)) for page in PAGES) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(rf"(?<![\w/-])(?:{FOLDERS})/[\w./@-]+\w", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text):
        assert name.startswith("http") or (page.parent / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_configuration_in_a_page_is_valid(page: Path, tmp_path: Path) -> None:
    defaults = load(None, {}, ())
    for table, key in re.findall(r"`\[(\w+)\] (\w+)", page.read_text()):
        assert hasattr(getattr(defaults, table), key), f"[{table}] {key}"
    for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL):
        if block.startswith("[project."):  # of a package, not of a run
            continue
        (tmp_path / "run.toml").write_text(block)
        assert load(tmp_path / "run.toml", {}, ()) != defaults
