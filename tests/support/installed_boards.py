"""A device's environments with wheels of this tree, as `edge-agent update` keeps them. Fixtures:
name this file in `tests/conftest.py`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.earlier_versions import ROOT, build_wheel
from tests.support.python_without_torch import HIDDEN
from tests.support.shared_folders import share_folder

__all__ = [
    "FIRST",
    "SECOND",
    "Board",
    "board",
    "make_variant",
    "refuse_to_join",
    "small_board",
    "wheel",
]

FIRST, SECOND = "9.1.0", "9.2.0"
PACKAGES = ("coordinator", "edge_agent", "espalier", "export", "federated", "models")
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
Change = Callable[[str, bytes], bytes]  # of a file in a wheel, by its name
# most of an installation is the compilation of modules, of which few are imported
QUICK = {"PIP_NO_COMPILE": "0"}  # pip wants a false value to leave it out


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree, with the version FIRST."""
    made = share_folder("wheel", tmp_path_factory.getbasetemp(), build_first)
    return next(made.glob("*.whl"))


def build_first(folder: Path) -> None:
    """Build the wheel of FIRST into a folder."""
    (source := folder / "source").mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "node_modules", "page")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    settings = (source / "pyproject.toml").read_text()
    versioned = re.sub(r'^version = ".*"', f'version = "{FIRST}"', settings, flags=re.MULTILINE)
    (source / "pyproject.toml").write_text(versioned)
    build_wheel(source, folder)


def make_variant(
    wheel: Path, version: str, folder: Path, change: Change = lambda name, content: content
) -> Path:
    """Write a wheel of another version, with changed files, and return it."""
    path = folder / wheel.name.replace(FIRST, version)
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = old.read(name)
            if ".dist-info/" in name:
                content = content.replace(FIRST.encode(), version.encode())
            new.writestr(name.replace(FIRST, version), change(name, content))
    return path


SYSTEMCTL = """#!/bin/sh
# Restarts the agent as systemd would, which no test can run.
cd "$(dirname "$0")"
if [ -f pid ]; then
    kill "$(cat pid)"
    while kill -0 "$(cat pid)" 2>/dev/null; do sleep 0.1; done
fi
ROOT/current/bin/edge-agent join --broker BROKER --name a --data digits >>agent.log 2>&1 &
echo $! >pid
"""


@dataclass
class Board:
    """A device's environments, of which the first one has the version FIRST.

    root: their folder.
    variables: environment variables of its commands.
    """

    root: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, *words: str, link: str = "current") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / link / "bin" / "edge-agent"), *words],
            capture_output=True,
            text=True,
            env=self.environment,
            check=False,
        )

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {**kept, **QUICK, "OMP_NUM_THREADS": "1", **self.variables}

    def update(self, wheel: Path, *more: str, sha256: str = "") -> tuple[int, str]:
        """Update to a wheel, and return the exit code and what was said."""
        digest = sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest()
        done = self.run("update", str(wheel), "--sha256", digest, *more)
        return done.returncode, done.stdout + done.stderr

    def read_version(self) -> str:
        return self.run("--version").stdout.split()[-1]

    def list_environments(self) -> list[str]:
        """Return the names of the environments, without the links."""
        return sorted(
            path.parent.name
            for path in self.root.glob("*/pyvenv.cfg")
            if not path.parent.is_symlink()
        )

    def add_systemctl(self, folder: Path, broker: str) -> Path:
        """Make a folder with a `systemctl` that restarts the agent `a`, and return it."""
        folder.mkdir()
        script = SYSTEMCTL.replace("ROOT", str(self.root)).replace("BROKER", broker)
        (folder / "systemctl").write_text(script)
        (folder / "systemctl").chmod(0o755)
        self.variables = {**self.variables, "PATH": f"{folder}:{os.environ['PATH']}"}
        return folder

    def run_tool(self, folder: Path, *words: str) -> None:
        """Run the `systemctl` of a folder."""
        subprocess.run([str(folder / "systemctl"), *words], env=self.environment, check=True)

    def stop_agent(self, folder: Path) -> None:
        """Stop the agent that the `systemctl` of a folder started."""
        if (folder / "pid").exists():
            subprocess.run(["kill", (folder / "pid").read_text().strip()], check=False)


def install_board(folder: Path, wheel: Path, shared: Path) -> Board:
    """Make an environment as a device has it, except that its packages are in a shared folder."""
    root = folder / "espalier"
    first = root / "first"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(first)], check=True)
    packages = next((first / "lib").glob("*/site-packages"))
    (packages / "shared.pth").write_text(f"{shared}\n")
    words = ["install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    python = str(first / "bin" / "python")
    subprocess.run([python, "-I", "-m", "pip", *words], env={**os.environ, **QUICK}, check=True)
    (root / "current").symlink_to("first")
    made = Board(root, {"ESPALIER_STATE": str(folder / "state"), "HOME": str(folder)})
    assert made.read_version() == FIRST
    return made


@pytest.fixture
def board(tmp_path: Path, wheel: Path) -> Board:
    """A device with the packages of the tests."""
    return install_board(tmp_path, wheel, Path(sysconfig.get_path("purelib")))


@pytest.fixture
def small_board(tmp_path: Path, wheel: Path) -> Board:
    """A device without PyTorch, whose commands start in a fraction of the time."""
    (shared := tmp_path / "shared").mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.name.partition("-")[0] not in HIDDEN:
            (shared / path.name).symlink_to(path)
    return install_board(tmp_path, wheel, shared)


def refuse_to_join(name: str, content: bytes) -> bytes:
    if name != "edge_agent/join/participation.py":
        return content
    return content.replace(b"    keep_chunks()\n", b'    raise FleetError("not today")\n', 1)
