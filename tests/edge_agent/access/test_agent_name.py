"""Default names of agents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.access.agent_name import derive_name, reserve_name


def test_a_machines_name_is_stable() -> None:
    assert derive_name() == derive_name()
    assert derive_name()[-5] == "-"


def test_a_second_agent_on_a_host_gets_a_number_until_the_first_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    code = (
        "import sys; from edge_agent.access.agent_name import reserve_name; "
        "print(reserve_name('host'), flush=True); sys.stdin.read()"
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
    assert reserve_name("host") == "host-2"
    other.communicate("")
    assert reserve_name("host") == "host"
