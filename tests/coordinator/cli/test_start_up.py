"""Commands of `coordinator` that compute nothing start at once: they load neither PyTorch nor
numpy.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import NOISE, ROOT, SLACK, compare_cost, cost_of
from tests.support.memory_federation import RUN, Member, digits, federate

pytestmark = pytest.mark.processes

HEAVY = {"numpy", "torch"}
# processor time, as a multiple of `import click, msgspec`, and MiB in addition to it; as measured
HELP = {
    "--help": (1.2, 1.3),
    "check --help": (1.6, 4.7),
    "enroll --help": (2.0, 9.3),
    "log --help": (1.6, 4.7),
    "runs --help": (1.6, 4.7),
    "start --help": (2.1, 9.3),
    "status --help": (1.6, 4.7),
}
READING = {
    f"check {RUN}": (2.5, 11.1),
    "devices": (2.7, 12.8),
    "log": (1.6, 4.8),
    "runs": (3.1, 13.5),
    "status": (3.0, 12.7),
    "enroll phone --pki pki": (2.7, 21.5),
}


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


def test_commands_show_a_finished_run(finished: Path) -> None:
    assert (
        f"run '{RUN}': fedavg of mlp-small on digits"
        in cost_of("coordinator", "status", folder=finished).out
    )
    assert RUN in cost_of("coordinator", "runs", folder=finished).out
    assert "round 1 ended: 1 of 1 updates" in cost_of("coordinator", "log", folder=finished).out


@pytest.mark.timed
@pytest.mark.parametrize(("command", "usual"), (HELP | READING).items())
def test_a_command_loads_neither_torch_nor_numpy_and_takes_little_time_and_memory(
    command: str, usual: tuple[float, float], finished: Path
) -> None:
    time, memory, modules = compare_cost("coordinator", *command.split(), folder=finished)
    assert not modules & HEAVY
    assert time < usual[0] * NOISE
    assert memory < usual[1] + SLACK


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coordinator.cli", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stdout.startswith("Usage: coordinator [OPTIONS] COMMAND")
