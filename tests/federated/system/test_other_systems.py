"""The commands on a system that lacks what only Linux or POSIX has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.broker.local_addresses import find_free_port
from federated.system.disk_space import BLOCK, reserve_space
from tests.support.commands import ROOT
from tests.support.processes import Start, result, wait_for_words

# imported by each Python process that the commands start, too
SITE = "from tests.support.other_system import become_other_system\nbecome_other_system()\n"
CHECK = """
from tests.support.other_system import become_other_system
become_other_system()
from federated.system import c_library, file_locks, process_limits, processors, users
assert processors.list_processors() == frozenset(range(__import__("os").cpu_count()))
assert not processors.limit_processors(0, [0])
assert c_library.find_function("prctl") is None
assert process_limits.get_descriptor_limit() == process_limits.DESCRIPTORS
process_limits.raise_descriptor_limit()
process_limits.lower_priority(1)
assert not process_limits.limit_data(0, 1 << 30)
assert not users.is_root()
for _ in range(2):
    file_locks.lock_file(0, wait=False)
"""


def test_functions_say_what_the_system_lacks() -> None:
    subprocess.run([sys.executable, "-c", CHECK], check=True)


@pytest.mark.parametrize("size", [0, 5, BLOCK, 2 * BLOCK + 5])
def test_space_is_reserved_without_the_function_of_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with (tmp_path / "file").open("wb") as file:
        reserve_space(file.fileno(), size)
    assert (tmp_path / "file").read_bytes() == bytes(size)


@pytest.mark.processes
@pytest.mark.broker
def test_a_fleet_learns_on_another_system(tmp_path: Path, start: Start) -> None:
    port = str(find_free_port("127.0.0.1", 0))
    sets = [
        *("--set", "broker.kind=embedded", "--set", "method.depths=[1]"),
        *("--set", "train.epochs=1", "--set", "fleet.wait=90"),
    ]
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    python = ["/usr/bin/env", f"PYTHONPATH={site}{os.pathsep}{ROOT}", sys.executable, "-m"]
    words = ["start", "--port", port, "--min-agents", "1", "--rounds", "1", "--format", "json"]
    coordinator = start(*python, "coordinator.cli", *words, *sets)
    assert wait_for_words(coordinator, tmp_path / "0.err", "agents join with")
    limits = ["--limit-cpus", "0.5", "--limit-memory", "1GB"]
    where = ["--broker", f"127.0.0.1:{port}", "--wait", "90", "--spool", str(tmp_path / "spool")]
    agent = start(*python, "edge_agent.cli", "join", *where, *limits, "--format", "json")
    assert result(coordinator)["rounds"] == 1
    assert result(agent)["updates"] == 1
