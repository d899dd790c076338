"""The commands on a system that lacks what only Linux or POSIX has."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from coordinator.broker import local_broker
from coordinator.broker.local_addresses import find_free_port
from federated.errors import ConfigError, EspalierError, LinkError
from federated.system.disk_space_reservation import BLOCK, reserve_space
from tests.support.commands import ROOT
from tests.support.processes import Start, result, wait_for_words

TOY = ROOT / "tests/export/toy.onnx"
# imported by each Python process that the commands start, too
SITE = "from tests.support.other_system import become_SYSTEM\nbecome_SYSTEM()\n"
MACOS = """
from tests.support.other_system import become_macos
become_macos()
from federated.system import c_library, process_limits, processors
assert processors.list_processors() == frozenset(range(__import__("os").cpu_count()))
assert not processors.limit_processors(0, [0])
assert c_library.find_function("prctl") is None
assert not process_limits.limit_data(0, 1 << 30)
"""
WINDOWS = """
from pathlib import Path
from tests.support.other_system import become_windows
become_windows()
from edge_agent.access.enrolment_files import locate_enrolment
from edge_agent.device.process_memory import read_memory
from federated.runtime import atomic_files
from federated.system import child_processes, disk_sync, file_locks, file_modes, file_names
from federated.system import process_limits, users
from federated.wire.enrolment_token import Token

folder = Path("folder")
folder.mkdir(mode=0o755)
file = folder / "file"
file.write_bytes(b"1")
atomic_files.write(file, b"2")
for path in (folder, file):
    disk_sync.sync(path)
assert file_modes.read_mode(folder) == 0o700
assert not child_processes.was_killed(-9)
with child_processes.block_interrupts():
    pass
assert process_limits.get_descriptor_limit() == process_limits.DESCRIPTORS
process_limits.raise_descriptor_limit()
process_limits.lower_priority(1)
assert not process_limits.limit_data(0, 1 << 30)
assert not users.is_root()
assert read_memory()[0] > 10**6
assert file_names.make_file_name("a@[::1]:1") == "a@[%3A%3A1]%3A1"
locate_enrolment(Token("name", "host", 8884, b"s" * 16, b"f" * 32)).mkdir(parents=True)

for path in (folder, file):
    held = file_locks.lock_path(path)
    try:
        file_locks.lock_path(path)
    except BlockingIOError:
        file_locks.unlock_path(path, held)
    else:
        raise AssertionError(f"{path} is locked twice")
    file_locks.unlock_path(path, file_locks.lock_path(path))
assert not list(Path().rglob("*.lock"))
file.replace(folder / "new")
"""


@pytest.mark.parametrize("check", [MACOS, WINDOWS], ids=["macos", "windows"])
def test_functions_do_without_what_the_system_lacks(check: str, tmp_path: Path) -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "ESPALIER_STATE": str(tmp_path / "state")}
    subprocess.run([sys.executable, "-c", check], check=True, cwd=tmp_path, env=variables)


@pytest.mark.parametrize("size", [0, 5, BLOCK, 2 * BLOCK + 5])
def test_space_is_reserved_without_the_function_of_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with (tmp_path / "file").open("wb") as file:
        reserve_space(file.fileno(), size)
    assert (tmp_path / "file").read_bytes() == bytes(size)


def make_python(tmp_path: Path, system: str) -> list[str]:
    """Return a command that starts Python as on another system."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE.replace("SYSTEM", system))
    return ["/usr/bin/env", f"PYTHONPATH={site}{os.pathsep}{ROOT}", sys.executable, "-m"]


@pytest.mark.processes
@pytest.mark.broker
@pytest.mark.parametrize("system", ["macos", "windows"])
def test_a_fleet_learns_on_another_system(tmp_path: Path, start: Start, system: str) -> None:
    """On Windows the broker is one that runs already."""
    python = make_python(tmp_path, system)
    words = ["start", "--min-agents", "1", "--rounds", "1", "--format", "json"]
    sets = [
        *("--method", "fedavg", "--model", "mlp-small", "--set", "train.steps=2"),
        *("--set", "evaluate.between=false", "--set", "fleet.wait=90"),
    ]
    with ExitStack() as stack:
        if system == "windows":
            folder = tmp_path / "broker"
            broker = stack.enter_context(
                local_broker.start(port=0, kind="embedded", directory=folder)
            )
            address = broker.address
            words += ["--broker", address]
        else:
            address = f"127.0.0.1:{find_free_port('127.0.0.1', 0)}"
            words += ["--port", address.split(":")[1], "--set", "broker.kind=embedded"]
        coordinator = start(*python, "coordinator.cli", *words, *sets)
        assert wait_for_words(coordinator, tmp_path / "0.err", "waiting: 0 of 1")
        limits = ["--limit-cpus", "0.5", "--limit-memory", "1GB"]
        where = ["--broker", address, "--wait", "90", "--spool", str(tmp_path / "spool")]
        agent = start(*python, "edge_agent.cli", "join", *where, *limits, "--format", "json")
        assert result(coordinator)["rounds"] == 1
        assert result(agent)["updates"] == 1


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "error", "remedy"),
    [
        ([], LinkError, "--broker HOST"),
        (["--metrics", "127.0.0.1:0"], ConfigError, "metrics cannot run on Windows: run without"),
    ],
)
def test_a_coordinator_on_windows_says_what_cannot_run_there(
    tmp_path: Path, words: list[str], error: type[EspalierError], remedy: str
) -> None:
    python = make_python(tmp_path, "windows")
    done = subprocess.run(
        [*python, "coordinator.cli", "start", *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == error.exit_code
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (["bench", str(TOY)], "toy.onnx"),
        (["doctor"], "limits"),
        (["infer", "--model", str(TOY), "x.npy"], "x.npy: 0 (95.3%)"),
    ],
    ids=["bench", "doctor", "infer"],
)
def test_the_agents_other_commands_run_on_windows(
    tmp_path: Path, command: list[str], answer: str
) -> None:
    np.save(tmp_path / "x.npy", [[2, 1]])
    python = make_python(tmp_path, "windows")
    done = subprocess.run(
        [*python, "edge_agent.cli", *command], capture_output=True, text=True, cwd=tmp_path
    )
    assert answer in done.stdout, done.stderr
    assert "Traceback" not in done.stderr
