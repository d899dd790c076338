"""`edge-agent update` with wheels built from this tree, without a network: what it installs, what
it refuses, and what remains if it is killed.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.installed_boards import FIRST, SECOND, Board, make_variant
from tests.support.waiting import eventually

# test_wanted_update updates a device with PyTorch, and restarts its agent
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.broker
def test_an_update_is_checked_switched_to_and_undone(
    small_board: Board, wheel: Path, tmp_path: Path, broker: str
) -> None:
    second, third = (make_variant(wheel, version, tmp_path) for version in (SECOND, "9.3.0"))
    code, said = small_board.update(second, "--broker", broker, "--format", "json")
    assert code == 0, said
    assert "passed its checks, without PyTorch" in said
    assert json.loads(said.splitlines()[0])["previous"] == "first"
    assert small_board.read_version() == SECOND
    assert small_board.run("--version", link="previous").stdout.split()[-1] == FIRST
    code, said = small_board.update(second)
    assert (code, "is the current environment already" in said) == (2, True)
    assert small_board.run("update", "--rollback").returncode == 0
    assert small_board.read_version() == FIRST
    again = small_board.run("update", "--rollback")
    assert (again.returncode, "no earlier environment" in again.stderr) == (2, True), again.stderr
    assert small_board.read_version() == FIRST
    code, said = small_board.update(second)
    assert (code, "passed its checks" in said) == (0, True), said
    assert small_board.read_version() == SECOND
    assert small_board.update(third)[0] == 0
    assert small_board.read_version() == "9.3.0"
    assert len(small_board.list_environments()) == 2, "the oldest one is removed"


def break_import(name: str, content: bytes) -> bytes:
    return b"import not_there\n" if name == "edge_agent/doctor/device_checks.py" else content


def require_more(name: str, content: bytes) -> bytes:
    if not name.endswith("METADATA"):
        return content
    return content.replace(
        b"Requires-Dist: click", b"Requires-Dist: not-there>=1\nRequires-Dist: click", 1
    )


def test_an_update_that_cannot_work_changes_nothing(
    small_board: Board, wheel: Path, tmp_path: Path
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
        (second, nobody, "", 3, r"doctor failed with code .*127\.0\.0\.1 port 9"),
    ):
        if not path.exists():
            sha256, found = "ab" * 32, small_board.run("update", str(path), "--sha256", "ab" * 32)
            told = found.returncode, found.stdout + found.stderr
        else:
            told = small_board.update(path, *more, sha256=sha256)
        assert told[0] == code, told[1]
        assert re.search(words, told[1].replace("\n", " ")), told[1]
        assert small_board.list_environments() == ["first"]
        assert not (small_board.root / ".staged").exists()
    assert small_board.read_version() == FIRST
    assert not (small_board.root / "previous").exists()


@pytest.mark.parametrize("sign", [".staged/*.whl", "9.2.0-*/pyvenv.cfg", "9.2.0-*/bin/edge-agent"])
def test_a_killed_update_leaves_a_version_in_use_and_the_next_one_clears_up(
    small_board: Board, wheel: Path, tmp_path: Path, sign: str
) -> None:
    """The signs appear in this order: the wheel, the environment, its program."""
    second = make_variant(wheel, SECOND, tmp_path)
    digest = hashlib.sha256(second.read_bytes()).hexdigest()
    words = [str(small_board.root / "current" / "bin" / "edge-agent"), "update", str(second)]
    with subprocess.Popen([*words, "--sha256", digest], env=small_board.environment) as process:
        eventually(lambda: list(small_board.root.glob(sign)) or process.poll() is not None, 600)
        process.kill()
    assert small_board.read_version() in (FIRST, SECOND)
    code, said = small_board.update(make_variant(wheel, "9.3.0", tmp_path))
    assert code == 0, said
    assert small_board.read_version() == "9.3.0"
    assert len(small_board.list_environments()) == 2
