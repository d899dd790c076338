"""Tests of processes that are forked from a server with PyTorch."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.faults.parts.trial_parts import Process
from coordinator.simulate.demo_fleet import python_command
from tests.support.waiting import eventually

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--no-such-option", 2)])
def test_a_forked_command_appends_its_output_and_returns_its_exit_code(
    tmp_path: Path, argument: str, code: int
) -> None:
    forked, started = Process("forked", tmp_path, forked=True), Process("started", tmp_path)
    for process in (forked, started):
        process.start(python_command("coordinator.cli", argument))
        assert process.popen is not None
        assert process.popen.wait(60) == code == process.exit_code
    assert forked.tail(100) == started.tail(100)
    assert forked.count("start 1") == 1


def test_a_forked_command_imports_nothing_again_and_can_be_killed(tmp_path: Path) -> None:
    (tmp_path / "waits_with_torch.py").write_text(
        "import sys, time\nprint('torch' in sys.modules, flush=True)\ntime.sleep(60)\n"
    )
    process = Process("forked", tmp_path, forked=True)
    sys.path.insert(0, str(tmp_path))
    try:
        process.start(python_command("waits_with_torch"))
    finally:
        sys.path.remove(str(tmp_path))
    assert eventually(lambda: process.count("True") == 1)
    process.kill()
    assert process.exit_code == -signal.SIGKILL


def test_the_training_process_of_a_forked_agent_is_forked_too_and_ends_with_it(
    tmp_path: Path,
) -> None:
    process = Process("forked", tmp_path, forked=True)
    process.start(python_command("edge_agent.cli", "profile", "--family", "mlp"))
    assert process.popen is not None
    agent = psutil.Process(process.popen.pid)
    (child,) = eventually(agent.children)
    assert child.cmdline() == agent.cmdline()
    process.kill()
    assert psutil.wait_procs([child], 30)[0] == [child]
