"""Tests that the commands, flags, files and configurations in the documentation exist and are
valid.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
import torch

from benchmarks.__main__ import main as benchmarks
from coordinator.cli.main import main as coordinator
from coordinator.gateway.command import main as edge_gateway
from coordinator.settings.config import load
from edge_agent.cli.main import main as edge_agent
from federated.engine.aggregate import Total, fold
from federated.method import Method, State, configure
from federated.methods.catalogue import find_method
from federated.task import Update
from models.named_network import network as network_named
from models.slicing import is_statistic
from models.submodel_building import initial
from tests.support.page_blocks import PAGES, REASONS, ROOT, list_blocks

FOLDERS = "benchmarks|coordinator|deploy|docs|edge_agent|export|federated|models|tests"
LABELS = {"labels": [0, 1], "loss": 1.0}
PROGRAMS = {
    "benchmarks": benchmarks,
    "coordinator": coordinator,
    "edge-agent": edge_agent,
    "edge-gateway": edge_gateway,
}


def find_commands(page: Path) -> list[tuple[str, bool]]:
    """Return the commands of PROGRAMS in a page, and whether they are whole: those in blocks are,
    and those between backticks may be parts, such as a flag without its value.
    """
    blocks = (block for block in list_blocks(page) if block.language == "shell")
    lines = [(line, True) for block in blocks for line in block.lines]
    text = " ".join(page.read_text().split())
    parts = re.findall(
        r"`((?:coordinator|edge-agent|edge-gateway|python -m benchmarks) [^`]+)`", text
    )
    lines += [(part, False) for part in parts]
    shorter = [(re.sub("python -m (?=benchmarks [a-z])", "", line), whole) for line, whole in lines]
    return [one for one in shorter if Path(one[0].split()[0]).name in PROGRAMS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_block_is_run_or_marked_with_the_reason(page: Path) -> None:
    """`test_page_blocks` runs those without a reason."""
    for block in list_blocks(page):
        assert {*block.reasons} <= REASONS.keys(), block.text
        assert block.reasons or block.language in ("python", "shell", "toml"), block.text


@pytest.mark.parametrize(
    ("line", "whole"), dict.fromkeys(one for page in PAGES for one in find_commands(page))
)
def test_a_command_that_a_page_names_is_valid(line: str, whole: bool) -> None:
    path, *words = shlex.split(line, comments=True)
    command: click.Command | None = PROGRAMS[Path(path).name]
    parent, name = None, path
    if isinstance(command, click.Group):
        parent, (name, *words) = click.Context(command), words
        command = command.get_command(parent, name)
    assert command is not None
    try:
        command.make_context(name, words, parent)
    except (click.BadOptionUsage, click.BadParameter):
        assert not whole


def test_the_pages_contain_commands() -> None:
    assert sum(len(find_commands(page)) for page in PAGES) > 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_an_extra_and_a_target_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    extras = {one for found in re.findall(r"'\.\[([a-z,]+)\]'", text) for one in found.split(",")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras <= project["optional-dependencies"].keys()
    targets = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    assert {*re.findall(r"(?:`|^ {4})make ([\w-]+)", text, re.MULTILINE)} <= {*targets[1].split()}


def test_the_readme_and_its_section_on_python_are_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert len(text.split("## From Python\n")[1].split("\n## ")[0].splitlines()) < 25


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(rf"(?<![\w/-])(?:{FOLDERS})/[\w./@-]+\w", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text):
        assert name.startswith("http") or (page.parent / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_setting_that_a_page_names_exists(page: Path) -> None:
    defaults = load(None, {}, ())
    for table, key in re.findall(r"`\[(\w+)\] (\w+)", page.read_text()):
        assert hasattr(getattr(defaults, table), key), f"[{table}] {key}"


@pytest.mark.usefixtures("forgotten_extensions")
def test_the_method_in_the_tutorial_runs_and_weights_updates_equally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_methods(tmp_path, monkeypatch)
    chosen = find_method("equal_weights:equal_weights")
    new = play_round(chosen, start_run(chosen), (("a", 10, 1.0), ("b", 1000, 3.0))).tensors
    values = {name: set(one.flatten().tolist()) for name, one in new.items()}
    assert values == {name: {2.0} for name in new}


@pytest.mark.usefixtures("forgotten_extensions")
def test_the_step_in_the_tutorial_adds_half_of_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_methods(tmp_path, monkeypatch)
    chosen = find_method("server_momentum:server_momentum")
    state = start_run(chosen)
    zeros = {name: torch.zeros_like(one) for name, one in state.tensors.items()}
    first = play_round(chosen, replace(state, tensors=zeros), (("a", 1, 2.0),))
    second = play_round(chosen, first, (("a", 1, 2.0),))
    stepped = {name for name in zeros if not is_statistic(name)}
    assert set(second.tensors) == {*zeros, *(f"momentum/{name}" for name in stepped)}
    for name in zeros:
        assert set(first.tensors[name].flatten().tolist()) == {2.0}
        expected = 3.0 if name in stepped else 2.0
        assert set(second.tensors[name].flatten().tolist()) == {expected}


def save_methods(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the methods of the tutorial where they can be imported."""
    for block in list_blocks(ROOT / "docs/own_method.md"):
        if block.language == "python":
            (folder / block.file).write_text(block.text)
    monkeypatch.syspath_prepend(folder)


def start_run(chosen: Method) -> State:
    """Return the first state of a method on a small network with one size."""
    network = network_named("mlp-small", (1, 2, 2), 2)
    settings = configure(chosen, {"widths": [1.0]})
    return chosen.start(initial(network, 0), chosen.menu(network, settings), settings)


def play_round(chosen: Method, state: State, agents: Iterable[tuple[str, int, float]]) -> State:
    """Return the state after a round. agents: name, examples, and value of all its weights."""
    menu = state.menu
    plan, total = chosen.place(state, menu[-1]), Total()
    for agent, samples, value in agents:
        tensors = {
            name: torch.full_like(one, value) for name, one in chosen.dispatch(state, plan).items()
        }
        update = Update("r", 1, 1, agent, "train", menu[-1], "r0", samples, 1, tensors, LABELS)
        fold(total, chosen.parts(state, plan, update), (agent,))
    return chosen.finish(state, total, np.random.default_rng(0))


@pytest.mark.parametrize(("name", "count"), [("SECURITY.md", 20), ("docs/laws.md", 15)])
def test_a_page_names_tests_that_exist(name: str, count: int) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / name).read_text())
    assert len(named) >= count
    missing = [
        (path, name)
        for path, name in named
        if not (ROOT / path).is_file()
        or not re.search(rf"^ *def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert not missing
