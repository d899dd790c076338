"""Agents that nobody named tell themselves apart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.access.identity import free_name, machine_name


def test_a_machine_keeps_its_name() -> None:
    assert machine_name() == machine_name()
    assert machine_name()[-5] == "-"


def test_a_second_agent_of_a_host_gets_a_number_and_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    code = (
        "import sys; from edge_agent.access.identity import free_name; print(free_name('host'), "
        "flush=True); sys.stdin.read()"
    )
    root = Path(__file__).parents[3]
    other = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "host\n"
    assert free_name("host") == "host-2"
    other.communicate("")
    assert free_name("host") == "host"
