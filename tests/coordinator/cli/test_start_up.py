"""Commands of `coordinator` that compute nothing start at once: they load neither PyTorch nor
numpy.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT, cost_of, is_quick
from tests.support.memory_federation import RUN, Member, digits, federate

pytestmark = pytest.mark.processes

HEAVY = {"numpy", "torch"}
MOST = 0.5  # seconds of processor time: twice what is promised, for machines that are busy or slow
HELP = [
    ["--help"],
    *([name, "--help"] for name in ("check", "enroll", "log", "runs", "start", "status")),
]
READING = [
    ["check", RUN],
    ["devices"],
    ["log"],
    ["runs"],
    ["status"],
    ["enroll", "phone", "--pki", "pki"],
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of one agent and one round that is over."""
    folder = tmp_path_factory.mktemp("finished")
    federate(
        folder,
        [Member("a0", digits(0, 1))],
        {
            "method.name": "fedavg",
            "model.name": "mlp-small",
            "rounds": 1,
            "train.steps": 1,
            "fleet.min_agents": 1,
        },
    )
    return folder


@pytest.mark.parametrize("arguments", HELP + READING, ids=" ".join)
def test_a_command_loads_neither_torch_nor_numpy(arguments: list[str], finished: Path) -> None:
    assert not cost_of("coordinator", *arguments, folder=finished).modules & HEAVY


def test_commands_show_a_finished_run(finished: Path) -> None:
    assert (
        f"run '{RUN}': fedavg of mlp-small on digits"
        in cost_of("coordinator", "status", folder=finished).out
    )
    assert RUN in cost_of("coordinator", "runs", folder=finished).out
    assert "round 1 ended: 1 of 1 updates" in cost_of("coordinator", "log", folder=finished).out


@pytest.mark.timed
@pytest.mark.parametrize("arguments", HELP + READING, ids=" ".join)
def test_a_command_takes_little_processor_time(arguments: list[str], finished: Path) -> None:
    assert is_quick("coordinator", *arguments, folder=finished, most=MOST)


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coordinator.cli", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stdout.startswith("Usage: coordinator [OPTIONS] COMMAND")
