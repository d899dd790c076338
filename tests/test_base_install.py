"""An installation without extras: commands that show or steer stored runs work, and every other
command of `coordinator` says which packages it needs, and exits with 4.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.cli.main import main

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[1]

EXTRAS = ["torch", "torchvision", "scipy", "safetensors", "cryptography", "starlette", "uvicorn"]
EXTRAS += ["anyio", "onnx", "onnxscript", "iotcore", "prometheus_client", "matplotlib", "PIL"]
BASE = (
    f"import sys; sys.modules |= dict.fromkeys({EXTRAS!r}); from coordinator.cli.main import main; "
    "main(prog_name='coordinator')"
)
READING = {
    "check",
    "devices",
    "log",
    "pause",
    "pin",
    "release",
    "runs",
    "status",
    "stop",
    "upgrade",
}
ARGUMENTS = {
    "assign": ["--profile", "pi.json"],
    "check": ["run"],
    "claim": ["batch", "--from", "names.csv"],
    "enroll": ["pi"],
    "doctor": ["--broker", "mqtt://127.0.0.1:1"],
    "export": ["run", "--out", "release"],
    "grant": ["pi", "--run", "run"],
    "group": ["garden"],
    "pin": ["pi", "1.0"],
    "register": ["pi"],
    "release": ["run", "--broker", "127.0.0.1:1"],
    "upgrade": ["run", "--broker", "127.0.0.1:1"],
    "revoke": ["pi"],
    "simulate": ["run.toml"],
}


def run(*arguments: str, folder: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", BASE, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env=environment,
    )


def test_help_needs_no_extra(tmp_path: object) -> None:
    done = run("--help", folder=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout for name in main.lazy)


@pytest.mark.parametrize("command", sorted(main.lazy.keys() - READING - {"audit", "doctor"}))
def test_a_command_names_the_missing_package_and_how_to_install_it(
    command: str, tmp_path: object
) -> None:
    done = run(command, *ARGUMENTS.get(command, []), folder=str(tmp_path))
    assert done.returncode == 4, done.stderr
    assert "pip install " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", sorted(READING))
def test_a_command_that_reads_runs_works_without_extras(command: str, tmp_path: object) -> None:
    done = run(command, *ARGUMENTS.get(command, []), folder=str(tmp_path))
    assert re.search("no run ('run' )?in the folder runs", done.stdout + done.stderr), done
    assert done.returncode == (0 if command == "runs" else 7)


def test_the_audit_log_is_shown_without_extras(tmp_path: object) -> None:
    done = run("audit", "--pki", "nowhere", folder=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "nothing was recorded yet\n")


def test_the_checks_of_a_broker_work_without_extras(tmp_path: object) -> None:
    done = run("doctor", *ARGUMENTS["doctor"], folder=str(tmp_path))
    assert "connection refused" in done.stdout
    assert done.returncode == 5


def test_the_files_that_ci_tests_without_extras_exist() -> None:
    """CI runs them only after all other tests, so a missing file would be found late."""
    names = (ROOT / ".ci" / "run").read_text().splitlines()[-1].split("pytest -q ")[1]
    # bash expands the braces
    expanded = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {names}"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(expanded) > 5
    assert [name for name in expanded if not (ROOT / name).exists()] == []
