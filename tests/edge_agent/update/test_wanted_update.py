"""A canary of the agents' software, from the command of the coordinator to the restarted agent of a
device, with a package index on this machine.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.installed_boards import FIRST, SECOND, Board, make_variant, refuse_to_join
from tests.support.paced_rounds import PACED
from tests.support.processes import COORDINATOR, Running, Start, wait_for_words
from tests.support.waiting import eventually

# each update imports PyTorch several times, and trains once
pytestmark = [
    pytest.mark.processes,
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serve_index(folder: Path) -> Iterator[tuple[str, Path]]:
    """Serve an empty package index; yield its address, and the folder for wheels."""
    (wheels := folder / "simple" / "espalier-fl").mkdir(parents=True)
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple", wheels
        server.shutdown()


def hash_wheel(wheel: Path) -> str:
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def finish(command: Running) -> tuple[int, dict[str, object]]:
    """Wait for a command; return its exit code and its result."""
    told, _ = command.communicate(timeout=900)
    return command.wait(), json.loads(told.splitlines()[-1])


def test_a_version_is_tried_on_a_device_promoted_and_taken_back(
    board: Board, wheel: Path, tmp_path: Path, broker: str, start: Start
) -> None:
    tools = board.add_systemctl(tmp_path / "tools", broker)
    settings = ["--set", "evaluate.devices=false", "--min-agents", "1", "--rounds", "5000"]
    words = ["start", "--name", "r", "--model", "mlp-small", "--broker", broker, *settings, *PACED]
    coordinator = start(*COORDINATOR, *words, "--format", "json")
    assert wait_for_words(coordinator, tmp_path / "0.err", "waiting: 0 of 1 agents")

    def order(*more: str) -> Running:
        told = ["--broker", broker, "--format", "json"]
        return start(*COORDINATOR, "upgrade", "r", *more, *told)

    with serve_index(tmp_path / "index") as (index, wheels):
        second = make_variant(wheel, SECOND, wheels)
        bad = make_variant(wheel, "9.3.0", wheels, refuse_to_join)
        names = [f"{path.name.split('-')[1]}-{hash_wheel(path)[:8]}" for path in (second, bad)]

        def look(wait: int = 240) -> tuple[int, str]:
            """Ask for the wanted version. wait: seconds for its agent to join."""
            wanted = ["update", "--wanted", "--index-url", index, "--restart", "agent"]
            done = board.run(*wanted, "--wait", f"{wait}", "--broker", broker, "--name", "a")
            return done.returncode, done.stdout + done.stderr

        try:
            board.run_tool(tools, "restart", "agent")
            assert wait_for_words(coordinator, tmp_path / "0.err", "round 2 of", 240)
            code, said = look()
            assert (code, "wants no particular version" in said) == (0, True), said

            # on one device first; taken back by hand, the device returns to what it had
            tried = ["--sha256", hash_wheel(second), "--canary", "a", "--wait"]
            assert finish(order(SECOND, *tried, "0"))[1]["canary"] == names[0]
            code, said = look()
            assert (code, board.read_version()) == (0, SECOND), said
            assert f"{names[0]} passed its checks\n" in said, "with PyTorch"
            assert f"the agent of {names[0]} joined a run" in said
            assert finish(order("--rollback"))[0] == 0
            code, said = look()
            assert (code, board.read_version()) == (0, FIRST), said
            back = board.run("update", "--rollback")
            assert (back.returncode, "the run rolled it back" in back.stderr) == (2, True), back

            # ordered again, it is promoted once the device answered a task with it
            judged = order(SECOND, *tried, "600", "--promote", "--force")
            assert wait_for_words(judged, tmp_path / "3.err", "waiting up to")
            assert look()[0] == 0
            code, result = finish(judged)
            assert (code, result["stable"], result["canary"]) == (0, names[0], ""), result
            assert "failed, before" in str(result["verdict"])

            # a version that does not join is left, refused, and taken back
            judged = order("9.3.0", "--sha256", hash_wheel(bad), "--canary", "a", "--promote")
            assert wait_for_words(judged, tmp_path / "4.err", "waiting up to")
            code, said = look(wait=30)
            assert (code, "went back from 9.3.0-" in said) == (6, True), said
            assert "not today" in (tools / "agent.log").read_text()
            record = tmp_path / "state" / "start.json"
            assert eventually(lambda: record.exists() and SECOND in record.read_text(), 240)
            code, result = finish(judged)
            assert code == 8
            assert (result["stable"], result["canary"]) == (names[0], "")
            assert f"version {names[1]} was rolled back: a refused it" in str(result["error"])
            code, said = look()
            assert (code, board.read_version()) == (0, SECOND), said
            assert f"{names[0]} is installed" in said

            # a digest that the index does not have is not installed
            other = ["--sha256", "ab" * 32, "--canary", "a", "--wait", "0"]
            assert finish(order("9.4.0", *other))[0] == 0
            code, said = look()
            assert (code, "cannot download" in said) == (5, True), said
            assert board.read_version() == SECOND
        finally:
            board.stop_agent(tools)
