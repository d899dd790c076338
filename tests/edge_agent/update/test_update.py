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

from tests.support.installed_boards import FIRST, SECOND, Board, make_variant, refuse_to_join
from tests.support.processes import COORDINATOR, Start, wait_for_words
from tests.support.waiting import eventually

# each update imports PyTorch several times, and trains once
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1200)]


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
    again = board.run("update", "--rollback")
    assert (again.returncode, "no earlier environment" in again.stderr) == (2, True), again.stderr
    assert board.read_version() == FIRST
    code, said = board.update(second)
    assert (code, "passed its checks" in said) == (0, True), said
    assert board.read_version() == SECOND
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
        (second, nobody, "", 3, r"doctor failed with code .*127\.0\.0\.1:9"),
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


@pytest.mark.broker
def test_a_restarted_agent_joins_or_the_previous_version_returns(
    board: Board, wheel: Path, tmp_path: Path, broker: str, start: Start
) -> None:
    tools = board.add_systemctl(tmp_path / "tools", broker)
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
        board.stop_agent(tools)
