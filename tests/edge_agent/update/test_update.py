"""`edge-agent update` with wheels built from this tree, without a network: what it installs, what
it refuses, and what remains if it is killed.
"""

from __future__ import annotations

import hashlib
import json
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
from tests.support.processes import COORDINATOR, Start, wait_for_words
from tests.support.waiting import eventually

# each update imports PyTorch several times, and trains once
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1200)]
FIRST, SECOND = "9.1.0", "9.2.0"
PACKAGES = ("coordinator", "edge_agent", "espalier", "export", "federated", "models")
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
Change = Callable[[str, bytes], bytes]  # of a file in a wheel, by its name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree, with the version FIRST."""
    folder = tmp_path_factory.mktemp("wheel")
    (source := folder / "source").mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "node_modules", "page")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    settings = (source / "pyproject.toml").read_text()
    versioned = re.sub(r'^version = ".*"', f'version = "{FIRST}"', settings, flags=re.MULTILINE)
    (source / "pyproject.toml").write_text(versioned)
    return build_wheel(source, folder)


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
        return {**kept, "OMP_NUM_THREADS": "1", **self.variables}

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


@pytest.fixture
def board(tmp_path: Path, wheel: Path) -> Board:
    """An environment as a device has it, except that packages come from that of the tests."""
    root = tmp_path / "espalier"
    first = root / "first"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(first)], check=True)
    packages = next((first / "lib").glob("*/site-packages"))
    (packages / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    words = ["install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run([str(first / "bin" / "python"), "-I", "-m", "pip", *words], check=True)
    (root / "current").symlink_to("first")
    made = Board(root, {"ESPALIER_STATE": str(tmp_path / "state"), "HOME": str(tmp_path)})
    assert made.read_version() == FIRST
    return made


@pytest.mark.broker
def test_an_update_is_checked_switched_to_and_undone(
    board: Board, wheel: Path, tmp_path: Path, broker: str
) -> None:
    second, third = (make_variant(wheel, version, tmp_path) for version in (SECOND, "9.3.0"))
    code, said = board.update(second, "--broker", broker, "--format", "json")
    assert code == 0, said
    assert "passed its checks" in said
    assert json.loads(said.splitlines()[0])["previous"] == "first"
    assert board.read_version() == SECOND
    assert board.run("--version", link="previous").stdout.split()[-1] == FIRST
    code, said = board.update(second)
    assert (code, "is the current environment already" in said) == (2, True)
    assert board.run("update", "--rollback").returncode == 0
    assert board.read_version() == FIRST
    code, said = board.update(second)
    assert (code, "update --rollback returns to it" in said) == (2, True)
    assert board.update(third)[0] == 0
    assert board.read_version() == "9.3.0"
    assert len(board.list_environments()) == 2, "the oldest one is removed"


def break_import(name: str, content: bytes) -> bytes:
    return b"import not_there\n" if name == "edge_agent/doctor/device_checks.py" else content


def require_more(name: str, content: bytes) -> bytes:
    if not name.endswith("METADATA"):
        return content
    return content.replace(
        b"Requires-Dist: click", b"Requires-Dist: not-there>=1\nRequires-Dist: click", 1
    )


def test_an_update_that_cannot_work_changes_nothing(
    board: Board, wheel: Path, tmp_path: Path
) -> None:
    second = make_variant(wheel, SECOND, tmp_path)
    foreign = tmp_path / second.name.replace("py3-none-any", "cp39-cp39-win_amd64")
    shutil.copy(second, foreign)
    (torn := tmp_path / wheel.name.replace(FIRST, "9.4.0")).write_bytes(b"no wheel")
    broken = make_variant(wheel, "9.5.0", tmp_path, break_import)
    needy = make_variant(wheel, "9.6.0", tmp_path, require_more)
    other = tmp_path / "other-1.0-py3-none-any.whl"
    shutil.copy(second, other)
    nobody = ["--broker", "127.0.0.1:9"]
    for path, more, sha256, code, words in (
        (second, [], "ab" * 32, 3, "expected sha256 abab.*nothing was installed"),
        (second, [], "12", 2, "--sha256: expected 64 hexadecimal digits"),
        (tmp_path / "gone.whl", [], "ab" * 32, 3, "cannot read .*gone.whl"),
        (other, [], "", 3, "expected a wheel of espalier-fl"),
        (foreign, [], "", 3, "not a supported wheel on this platform"),
        (torn, [], "", 3, "is no wheel"),
        (needy, [], "", 3, "not-there.*--requirements"),
        (broken, [], "", 3, "doctor failed with code .*not_there"),
        (second, nobody, "", 3, "doctor .*127.0.0.1:9 failed"),
    ):
        if not path.exists():
            sha256, found = "ab" * 32, board.run("update", str(path), "--sha256", "ab" * 32)
            told = found.returncode, found.stdout + found.stderr
        else:
            told = board.update(path, *more, sha256=sha256)
        assert told[0] == code, told[1]
        assert re.search(words, told[1].replace("\n", " ")), told[1]
        assert board.list_environments() == ["first"]
        assert not (board.root / ".staged").exists()
    assert board.read_version() == FIRST
    assert not (board.root / "previous").exists()


@pytest.mark.parametrize("sign", [".staged/*.whl", "9.2.0-*/pyvenv.cfg", "9.2.0-*/bin/edge-agent"])
def test_a_killed_update_leaves_a_version_in_use_and_the_next_one_clears_up(
    board: Board, wheel: Path, tmp_path: Path, sign: str
) -> None:
    """The signs appear in this order: the wheel, the environment, its program."""
    second = make_variant(wheel, SECOND, tmp_path)
    digest = hashlib.sha256(second.read_bytes()).hexdigest()
    words = [str(board.root / "current" / "bin" / "edge-agent"), "update", str(second)]
    with subprocess.Popen([*words, "--sha256", digest], env=board.environment) as process:
        eventually(lambda: list(board.root.glob(sign)) or process.poll() is not None)
        process.kill()
    assert board.read_version() in (FIRST, SECOND)
    code, said = board.update(make_variant(wheel, "9.3.0", tmp_path))
    assert code == 0, said
    assert board.read_version() == "9.3.0"
    assert len(board.list_environments()) == 2


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


def refuse_to_join(name: str, content: bytes) -> bytes:
    if name != "edge_agent/join/participation.py":
        return content
    return content.replace(b"    keep_chunks()\n", b'    raise FleetError("not today")\n', 1)


@pytest.mark.broker
def test_a_restarted_agent_joins_or_the_previous_version_returns(
    board: Board, wheel: Path, tmp_path: Path, broker: str, start: Start
) -> None:
    (tools := tmp_path / "tools").mkdir()
    script = SYSTEMCTL.replace("ROOT", str(board.root)).replace("BROKER", broker)
    (tools / "systemctl").write_text(script)
    (tools / "systemctl").chmod(0o755)
    board.variables = {**board.variables, "PATH": f"{tools}:{os.environ['PATH']}"}
    settings = ["--set", "evaluate.devices=false", "--min-agents", "1", "--rounds", "1000"]
    words = ["start", "--name", "r", "--model", "mlp-small", "--broker", broker, *settings]
    coordinator = start(*COORDINATOR, *words, "--format", "json")
    try:
        restart = ["--restart", "agent", "--broker", broker, "--wait"]
        code, said = board.update(make_variant(wheel, SECOND, tmp_path), *restart, "240")
        assert (code, "joined a run" in said) == (0, True), said
        assert wait_for_words(coordinator, tmp_path / "0.err", "round 2 of"), said
        bad = make_variant(wheel, "9.3.0", tmp_path, refuse_to_join)
        code, said = board.update(bad, *restart, "30")
        assert code == 6, said
        assert "went back from 9.3.0-" in said
        assert board.read_version() == SECOND
        assert "not today" in (tools / "agent.log").read_text()
        record = tmp_path / "state" / "start.json"
        assert eventually(lambda: record.exists() and SECOND in record.read_text(), 240)
    finally:
        if (tools / "pid").exists():
            subprocess.run(["kill", (tools / "pid").read_text().strip()], check=False)
