"""`deploy/arm64-check` names what the machine lacks. The check itself emulates a processor for
minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "deploy" / "arm64-check"


@pytest.mark.skipif(sys.platform != "linux", reason="it runs on Linux alone")
def test_a_machine_without_the_tools_is_told_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--root", tmp_path / "root"],
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
        env={**os.environ, "PATH": str(tmp_path)},
    )
    assert done.returncode == 2
    wanted = "debootstrap and qemu-user-static" if os.geteuid() == 0 else "Linux and root"
    assert wanted in done.stderr
    assert not (tmp_path / "root").exists()
