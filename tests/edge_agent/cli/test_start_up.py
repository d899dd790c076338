"""`edge-agent` shows its help at once: it loads neither PyTorch nor numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT, cost_of, is_quick

pytestmark = pytest.mark.processes

HEAVY = {"numpy", "onnxruntime", "torch"}
MOST = 0.5  # seconds of processor time: twice what is promised, for machines that are busy or slow
HELP = [
    ["--help"],
    *([name, "--help"] for name in ("bench", "doctor", "finetune", "infer", "join", "profile")),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of all commands, where they share their bytecode."""
    return tmp_path_factory.mktemp("shared")


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_help_loads_neither_torch_nor_numpy(arguments: list[str], shared: Path) -> None:
    assert not cost_of("edge_agent", *arguments, folder=shared).modules & HEAVY


@pytest.mark.timed
@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_help_takes_little_processor_time(arguments: list[str], shared: Path) -> None:
    assert is_quick("edge_agent", *arguments, folder=shared, most=MOST)


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "edge_agent.cli", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stdout.startswith("Usage: edge-agent [OPTIONS] COMMAND")
