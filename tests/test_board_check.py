"""`deploy/board-check` with the installation of this checkout, and with one whose programs fail."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "deploy" / "board-check"
# a program of this checkout; some of its commands get more flags, with which they take seconds
PROGRAM = """#!{python}
import sys
sys.path.insert(0, {root!r})
from {package}.cli.main import main
sys.argv += {flags}.get(sys.argv[1], [])
main()
"""
SETTINGS = (
    *("model.name=resnet-tiny", "method.widths=[1.0]", "train.steps=2", "train.batch=8"),
    "evaluate.devices=false",
)
FLAGS = {
    "edge-agent": {
        "profile": ["--runtime", "torch", "--batch", "4"],
        "bench": ["--inputs", "1,8,8", "--runtime", "onnx", "--no-predict"],
    },
    "coordinator": {"start": [word for one in SETTINGS for word in ("--set", one)]},
}


def check_board(out: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, "--out", out, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=600,
        env={**os.environ, "HOME": str(out.parent)},
    )


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder of the real programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, flags in FLAGS.items():
        file, package = folder / name, name.replace("-", "_")
        text = PROGRAM.format(python=sys.executable, root=str(ROOT), package=package, flags=flags)
        file.write_text(text)
        file.chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_check_passes_on_this_machine_and_the_report_names_it_nowhere(
    tmp_path: Path, programs: Path
) -> None:
    """`test_bench_command` and `test_profile_command` measure with the flags that this replaces."""
    done = check_board(tmp_path / "report.md", "--bin", programs, "--rounds", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "report.md").read_text()
    rows = [line.split(" | ")[:2] for line in report.splitlines() if line.startswith("| ")][1:]
    assert [row[1] for row in rows] == ["passed"] * 7
    titles = ["profile", "predict", "measure", "train", "end of the run", "export", "infer"]
    assert [row[0].removeprefix("| ") for row in rows] == titles
    for secret in (str(tmp_path), str(programs), str(ROOT)):
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
