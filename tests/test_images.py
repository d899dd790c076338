"""The images and the fleet of deploy/compose.yaml, tested without a container engine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from coordinator.cli.main import main as coordinator
from edge_agent.cli.main import main as edge_agent

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "deploy" / "compose.yaml"
DOCKERFILES = sorted((ROOT / "deploy" / "docker").glob("*.Dockerfile"))
PROGRAMS = {"coordinator": coordinator, "edge-agent": edge_agent}
ENTRY = {"espalier-coordinator": "coordinator", "espalier-agent": "edge-agent"}


def services() -> dict[str, Any]:
    found = yaml.safe_load(COMPOSE.read_text())["services"]
    assert isinstance(found, dict)
    return found


def tool(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{name} is not installed here (extra dev)")
    return found


def accept(program: str, words: list[str]) -> None:
    """Parse a command line as the program does, without running it."""
    name, *rest = words
    context = click.Context(PROGRAMS[program])
    command = PROGRAMS[program].get_command(context, name)
    assert command is not None, name
    command.make_context(name, list(rest), parent=context)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_no_fault_with_an_image(path: Path) -> None:
    done = subprocess.run(
        [tool("hadolint"), str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_copies_existing_files_runs_unprivileged_and_starts_a_command(
    path: Path,
) -> None:
    text = path.read_text()
    let_in = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    for words in re.findall(r"^COPY (?!--)(.+)$", text, re.MULTILINE):
        for source in words.split()[:-1]:
            assert (ROOT / source).exists()
            assert source in let_in, f"{source} is not let through by .dockerignore"
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["10001:10001"]
    assert "HEALTHCHECK" in text
    final = text.split("\nFROM ")[-1]
    assert not re.search(r"pip install|build-essential|gcc", final)
    (program,) = yaml.safe_load(re.findall(r"^ENTRYPOINT (.+)$", text, re.MULTILINE)[0])
    accept(program, yaml.safe_load(re.findall(r"^CMD (\[.+\])$", text, re.MULTILINE)[0]))


def test_the_packages_of_an_image_are_those_of_the_project() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"benchmarks", "tests"}
    for path in DOCKERFILES:
        assert set(re.findall(r"^COPY (\w+) \w+$", path.read_text(), re.MULTILINE)) == packages


def test_the_fleet_on_one_machine_is_what_compose_specifies() -> None:
    done = subprocess.run(
        [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(COMPOSE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_every_service_uses_existing_flags_and_mounts_existing_files() -> None:
    declared = set(yaml.safe_load(COMPOSE.read_text())["volumes"])
    for name, service in services().items():
        if service["image"] in ENTRY and "entrypoint" not in service:
            accept(ENTRY[service["image"]], service["command"])
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in declared or (COMPOSE.parent / source).is_file(), f"{name}: {source}"
        if "build" in service:
            assert (
                COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]
            ).is_file()


def test_the_enrolment_script_uses_existing_flags_and_makes_a_token_for_each_agent() -> None:
    (script,) = services()["authority"]["command"]
    for line in re.findall(r"coordinator (\w[^>\n]*)", script):
        accept("coordinator", line.replace('"$$name"', "pi").split())
    (agents,) = re.findall(r"for name in ([\w ]+);", script)
    joining = {name for name, service in services().items() if service["image"] == "espalier-agent"}
    assert set(agents.split()) == joining
    for name in joining:
        assert services()[name]["command"][:3] == ["join", "--token-file", f"/tokens/{name}"]


def test_no_service_has_rights_or_reaches_beyond_the_fleet() -> None:
    for name, service in services().items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["networks"] == ["fleet"], name
        assert "ports" not in service, name
        assert not service.get("privileged"), name
    assert yaml.safe_load(COMPOSE.read_text())["networks"]["fleet"]["internal"]


def test_the_agents_are_of_unequal_size() -> None:
    sizes = [
        (service["cpus"], service["mem_limit"])
        for service in services().values()
        if service["image"] == "espalier-agent"
    ]
    assert len(set(sizes)) == len(sizes) == 4
