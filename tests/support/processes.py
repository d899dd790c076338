"""Commands in their own processes, the broker that they connect to, and functions that wait for
output. Fixtures: name this file in `tests/conftest.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import IO, Any

import pytest

from benchmarks.faults.parts.fork_server import ForkedProcess, ServedTraining
from tests.support.waiting import PATIENCE, eventually

__all__ = [
    "AGENT",
    "COORDINATOR",
    "GATEWAY",
    "WITHOUT_TORCH",
    "Running",
    "Start",
    "broker",
    "forked_commands",
    "forked_training",
    "read_address",
    "result",
    "start",
    "start_processes",
    "wait_for_words",
]

COORDINATOR = [sys.executable, "-m", "coordinator.cli"]
AGENT = [sys.executable, "-m", "edge_agent.cli"]
GATEWAY = [sys.executable, "-m", "coordinator.gateway"]
WITHOUT_TORCH = [
    sys.executable,
    "-c",
    "import sys; sys.modules['torch'] = None\nfrom edge_agent.cli.main import main; main()",
]
ROOT = Path(__file__).parents[2]

Running = subprocess.Popen[str] | ForkedProcess
Start = Callable[..., Running]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a real broker, the best on this machine."""
    from coordinator.broker import local_broker as brokers

    with brokers.start("127.0.0.1", 0, "auto", tmp_path / "broker") as started:
        yield started.address


@pytest.fixture
def forked_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork training processes of this process from one that has imported PyTorch."""
    from edge_agent.join import training_process_control

    replaced = SimpleNamespace(**{**vars(subprocess), "Popen": ServedTraining})
    monkeypatch.setattr(training_process_control, "subprocess", replaced)


@pytest.fixture
def forked_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the coordinators and agents of the demo and of benchmarks from one that has imported
    PyTorch.
    """
    from coordinator.simulate import demo_fleet

    def begin(
        command: Sequence[str], *, stdout: IO[bytes], env: Mapping[str, str], **options: Any
    ) -> object:
        if list(command[:3]) not in (COORDINATOR, AGENT):
            return subprocess.Popen(command, stdout=stdout, env=env, **options)
        # a forked process behaves as if it got these
        assert options == {"stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        log = Path(stdout.name)
        return ForkedProcess(command[2], command[3:], out=log, errors=log, environment=env)

    replaced = SimpleNamespace(**{**vars(subprocess), "Popen": begin})
    monkeypatch.setattr(demo_fleet, "subprocess", replaced)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start commands in the test's folder."""
    with start_processes(tmp_path) as begin:
        yield begin


@contextmanager
def start_processes(folder: Path) -> Iterator[Start]:
    """Yield a function that starts a command in a folder, with its messages in NUMBER.err, counted
    from 0.

    All processes end with the context. Those of COORDINATOR, AGENT and GATEWAY are forked from a
    process that has imported PyTorch, because its import takes longer than most of these tests.
    variables: additional environment variables.
    """
    started: list[Running] = []
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),  # packages of a test
        "PYTHONUNBUFFERED": "1",
    }

    def begin(*command: str, variables: Mapping[str, str] = MappingProxyType({})) -> Running:
        errors = folder / f"{len(started)}.err"
        process: Running
        if list(command[:3]) in (COORDINATOR, AGENT, GATEWAY):
            process = ForkedProcess(
                command[2],
                command[3:],
                out=errors.with_suffix(".out"),
                errors=errors,
                environment={**environment, **variables},
                folder=folder,
            )
        else:
            with errors.open("w") as log:
                process = subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**environment, **variables},
                    cwd=folder,
                )
        started.append(process)
        return process

    try:
        yield begin
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.communicate()
    for log in sorted(folder.glob("*.err")):
        print(f"{log.name}:\n{log.read_text()}")


def result(process: Running, timeout: float = PATIENCE) -> dict[str, Any]:
    """Return the JSON result of a successful command, from its last line."""
    out, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, out
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def wait_for_words(process: Running, log: Path, words: str, seconds: float = PATIENCE) -> bool:
    """Return True if a process writes these words to standard error before it ends."""
    ended = eventually(lambda: words in log.read_text() or process.poll() is not None, seconds)
    return ended and words in log.read_text()


def read_address(log: Path) -> str:
    """Return the address at which an agent reports to listen."""
    line = eventually(
        lambda: next(
            (line for line in log.read_text().splitlines() if line.startswith("listening at ")), ""
        )
    )
    return line.split()[2].rstrip(":")
