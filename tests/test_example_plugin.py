"""A package that is not part of the project extends it: installed by pip, and used on a real fleet
through the Python API.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import AGENT, Start, result
from tests.support.toy_extensions import MEMBERS
from tests.support.waiting import PATIENCE

HERE = Path(__file__).parent
PACKAGE = HERE / "example_plugin" / "pyproject.toml"
PROGRAM = """
import json, sys
import espalier
from models.submodel_building import full, initial, shapes

method, model, train = json.loads(sys.argv[2])
run = espalier.run(
    method, model, "toy", espalier.Fleet(broker=sys.argv[1], min_agents=3, wait=90),
    name="plugin", rounds=2, train=train, wire={"codec": "toy"},
    robust={"rule": "toy", "byzantine": 1}, observe={"readers": ["toy"]},
)
done = run.result()
begun, names = initial(done.network, 0), shapes(full(done.network))
moved = [(done.weights[name] - begun[name]).aminmax() for name in names]
print(json.dumps({
    "family": done.network.family,
    "preset": done.network.preset,
    "outcomes": [entry.outcome for past in done.history for entry in past.entries],
    "events": json.loads((done.folder / "counts.json").read_text()),
    "least": min(float(one.min) for one in moved),
    "most": max(float(one.max) for one in moved),
}))
"""


def test_the_example_package_declares_every_extension_point() -> None:
    points = tomllib.loads(PACKAGE.read_text())["project"]["entry-points"]
    assert points.keys() == MEMBERS.keys()
    for group, declared in points.items():
        assert declared["toy"].partition(":")[2] == MEMBERS[group].partition(":")[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which pip installed the example package, without a network."""
    folder = tmp_path_factory.mktemp("package")
    source, target = folder / "source", folder / "installed"
    (source / "toy_plugin").mkdir(parents=True)
    shutil.copy(PACKAGE, source)
    (source / "toy_plugin" / "__init__.py").touch()
    for name, file in (("extensions", "toy_extensions"), ("trainer", "toy_trainer")):
        shutil.copy(HERE / "support" / f"{file}.py", source / "toy_plugin" / f"{name}.py")
    flags = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *flags, "--target", target, source]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return target


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.broker
def test_a_fleet_trains_with_an_installed_package(
    installed: Path, start: Start, broker: str
) -> None:
    train = {"widths": (0.5, 1.0), "steps": 3}
    found = train_fleet(installed, start, broker, "pytorch", ("toy", "toy-large", train))
    assert (found["family"], found["preset"]) == ("toy", "large")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.broker
def test_a_fleet_trains_with_the_trainer_of_an_installed_package(
    installed: Path, start: Start, broker: str
) -> None:
    """It runs no hooks, so the method has none. One step of 0.25 in each round moves every weight
    by a half.
    """
    train = {"norm": "static", "steps": 1, "lr": 0.25}
    found = train_fleet(installed, start, broker, "toy", ("fedavg", "mlp", train))
    assert [found["least"], found["most"]] == pytest.approx([0.5, 0.5], abs=1e-5)


def train_fleet(
    installed: Path, start: Start, broker: str, trainer: str, given: tuple[str, str, Any]
) -> dict[str, Any]:
    """Train for two rounds with three agents, and return what the coordinator's program prints.

    given: method, model and table `train` of the run
    """
    path = {"PYTHONPATH": f"{HERE.parent}:{installed}"}
    program = [sys.executable, "-c", PROGRAM]
    coordinator = start(*program, broker, json.dumps(given), variables=path)
    agents = [
        start(
            *(*AGENT, "join", "--broker", broker, "--name", f"a{i}", "--format", "json"),
            *("--data", "toy", "--shard", f"{i}/3", "--partition", "iid", "--trainer", trainer),
            variables=path,
        )
        for i in range(3)
    ]
    assert [result(agent)["updates"] for agent in agents] == [2, 2, 2]
    out, _ = coordinator.communicate(timeout=PATIENCE)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert found["outcomes"] == ["folded"] * 6
    assert found["events"]["RoundEnded"] == 2
    return found
