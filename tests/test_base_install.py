"""An installation without extras: every command of `coordinator` says which packages it needs, and
exits with 4.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from coordinator.cli.main import main

pytestmark = pytest.mark.processes

EXTRAS = ["torch", "torchvision", "scipy", "safetensors", "cryptography", "starlette", "uvicorn"]
EXTRAS += ["onnx", "onnxscript", "iotcore", "prometheus_client", "matplotlib", "PIL"]
BASE = (
    f"import sys; sys.modules |= dict.fromkeys({EXTRAS!r}); from coordinator.cli.main import main; "
    "main(prog_name='coordinator')"
)
ARGUMENTS = {
    "assign": ["--profile", "pi.json"],
    "enroll": ["pi"],
    "export": ["run", "--out", "release"],
    "release": ["run"],
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
    assert all(name in done.stdout for name in main.commands)


@pytest.mark.parametrize("command", sorted(main.commands))
def test_a_command_names_the_missing_package_and_how_to_install_it(
    command: str, tmp_path: object
) -> None:
    done = run(command, *ARGUMENTS.get(command, []), folder=str(tmp_path))
    assert done.returncode == 4, done.stderr
    assert "pip install 'espalier[" in done.stderr
    assert "Traceback" not in done.stderr
