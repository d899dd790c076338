"""`deploy/board-check` with the installation of this checkout, and with one whose programs fail."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "deploy" / "board-check"
PROGRAMS = Path(sys.executable).parent


def check_board(out: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, "--out", out, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=600,
        env={**os.environ, "HOME": str(out.parent)},
    )


@pytest.mark.slow
@pytest.mark.timeout(900)  # on a busy machine
def test_every_check_passes_on_this_machine_and_the_report_names_it_nowhere(
    tmp_path: Path,
) -> None:
    done = check_board(tmp_path / "report.md", "--bin", PROGRAMS, "--rounds", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "report.md").read_text()
    rows = [line.split(" | ")[:2] for line in report.splitlines() if line.startswith("| ")][1:]
    assert [row[1] for row in rows] == ["passed"] * 7
    titles = ["profile", "predict", "measure", "train", "end of the run", "export", "infer"]
    assert [row[0].removeprefix("| ") for row in rows] == titles
    for secret in (str(tmp_path), str(PROGRAMS), str(SCRIPT.parents[1])):
        assert secret not in report
    assert f" {socket.gethostname()} " not in report


def test_a_check_that_fails_ends_the_others_and_is_reported(tmp_path: Path) -> None:
    false = shutil.which("false")
    assert false is not None
    for name in ("edge-agent", "coordinator"):
        (tmp_path / name).symlink_to(false)
    done = check_board(tmp_path / "report.md", "--bin", tmp_path)
    assert done.returncode == 1
    assert "the check 'profile' failed" in done.stdout
    report = (tmp_path / "report.md").read_text()
    assert "| profile | FAILED (1) |" in report
    assert report.count("| not tried |") == 4


def test_a_folder_without_programs_is_an_error(tmp_path: Path) -> None:
    done = check_board(tmp_path / "report.md", "--bin", tmp_path)
    assert done.returncode == 2
    assert "no program edge-agent there" in done.stderr
    assert not (tmp_path / "report.md").exists()
