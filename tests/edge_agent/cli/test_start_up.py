"""`edge-agent` shows its help at once: it loads neither PyTorch nor numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import NOISE, ROOT, SLACK, compare_cost

pytestmark = pytest.mark.processes

HEAVY = {"numpy", "onnxruntime", "torch"}
# processor time, as a multiple of `import click, msgspec`, and MiB in addition to it; as measured
HELP = {
    "--help": (1.2, 1.2),
    "bench --help": (2.6, 10.5),
    "doctor --help": (1.5, 3.7),
    "finetune --help": (1.6, 3.7),
    "infer --help": (1.5, 3.5),
    "join --help": (1.7, 7.4),
    "profile --help": (1.5, 3.7),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of all commands, where they share their bytecode."""
    return tmp_path_factory.mktemp("shared")


@pytest.mark.timed
@pytest.mark.parametrize(("command", "usual"), HELP.items())
def test_help_loads_neither_torch_nor_numpy_and_takes_little_time_and_memory(
    command: str, usual: tuple[float, float], shared: Path
) -> None:
    time, memory, modules = compare_cost("edge_agent", *command.split(), folder=shared)
    assert not modules & HEAVY
    assert time < usual[0] * NOISE
    assert memory < usual[1] + SLACK


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "edge_agent.cli", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stdout.startswith("Usage: edge-agent [OPTIONS] COMMAND")
