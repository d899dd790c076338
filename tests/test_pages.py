"""Tests that the commands, flags, files and configurations in the documentation exist and are
valid.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch

import espalier
from benchmarks.__main__ import main as benchmarks
from coordinator.cli.main import main as coordinator
from coordinator.run.run_preparation import prepare
from coordinator.settings.config import load
from edge_agent.cli.main import main as edge_agent
from federated.engine.aggregate import Total, fold
from federated.method import configure
from federated.methods.catalogue import find_method
from federated.task import Update
from models.named_network import network as network_named
from models.submodel_building import initial

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "README", "SECURITY")),
    *sorted((ROOT / "docs").glob("*.md")),
]
FOLDERS = "benchmarks|coordinator|deploy|docs|edge_agent|export|federated|models|tests"
LABELS = {"labels": [0, 1], "loss": 1.0}
PROGRAMS = {"benchmarks": benchmarks, "coordinator": coordinator, "edge-agent": edge_agent}


def find_commands(page: Path) -> list[list[str]]:
    """Return the commands of PROGRAMS in a page, each as words: those in code blocks, and those
    between backticks that have more than a name.
    """
    text = page.read_text().replace("\\\n", " ")  # a backslash continues a command
    text = text.replace("python -m benchmarks", "benchmarks").replace("benchmarks NAME", "")
    lines = re.findall(r"^ {4,}(.+)$", text, re.MULTILINE) + re.findall(
        rf"`((?:{'|'.join(PROGRAMS)}) [^`]+)`", text
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


def test_the_private_run_in_the_tutorial_is_accepted(tmp_path: Path) -> None:
    """A private run is refused if devices would send something without noise."""
    page = ROOT / "docs" / "private_run.md"
    (block,) = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "private.toml").write_text(block)
    assert ["coordinator", "start", "--config", "private.toml"] in find_commands(page)
    config = load(tmp_path / "private.toml", {}, [("name", "private")])
    prepare(config, tmp_path / "runs", resume=False).close()
    assert config.private.noise > 0


def find_python(page: str) -> str:
    """Return the Python code in a page of docs."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


@pytest.mark.usefixtures("forgotten_extensions")
def test_the_method_in_the_tutorial_runs_and_weights_updates_equally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "equal_weights.py").write_text(find_python("own_method.md"))
    monkeypatch.syspath_prepend(tmp_path)
    chosen = find_method("equal_weights:equal_weights")
    network = network_named("mlp-small", (1, 2, 2), 2)
    settings = configure(chosen, {"widths": [1.0]})
    menu = chosen.menu(network, settings)
    state = chosen.start(initial(network, 0), menu, settings)
    plan, total = chosen.place(state, menu[-1]), Total()
    for agent, samples, value in (("a", 10, 1.0), ("b", 1000, 3.0)):
        tensors = {
            name: torch.full_like(one, value) for name, one in chosen.dispatch(state, plan).items()
        }
        update = Update("r", 1, 1, agent, "train", menu[-1], "r0", samples, 1, tensors, LABELS)
        fold(total, chosen.parts(state, plan, update), (agent,))
    new = chosen.finish(state, total, np.random.default_rng(0)).tensors
    values = {name: set(one.flatten().tolist()) for name, one in new.items()}
    assert values == {name: {2.0} for name in new}


def test_the_network_in_the_tutorial_can_be_narrowed_and_made_shallower() -> None:
    names: dict[str, Any] = {"__name__": "tutorial"}
    exec(find_python("own_network.md"), names)
    net = espalier.network(names["residual"](), inputs=(1, 8, 8))
    small, *_, large = espalier.menu(net, widths=(0.5, 1.0), depths=(1, 2))
    assert 3 * espalier.cost(small).parameters < espalier.cost(large).parameters
    assert espalier.slice(net, small)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_the_code_of_the_api_page_prints_the_submodels(capsys: pytest.CaptureFixture[str]) -> None:
    exec(find_python("api.md"), {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in lines] == ["w0.5-d2.2.2", "w1-d2.2.2"]
    assert 3 * int(lines[0][1]) < int(lines[1][1])


def test_security_names_tests_that_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) >= 20
    missing = [
        (path, name)
        for path, name in named
        if not (ROOT / path).is_file()
        or not re.search(rf"^ *def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert not missing
