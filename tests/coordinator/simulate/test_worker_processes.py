"""Worker processes of a simulation: their death, ctrl-C, and the death of their parent.

Each test starts a whole simulation, since signals go to processes; so these tests are slow.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coordinator.simulate import worker_processes
from coordinator.simulate.device_data import DataSource
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="needs /proc to inspect processes"
)

EXPERIMENT = """
rounds = 500
[method]
name = "fedavg"
widths = [0.25]
[train]
epochs = 500
[simulate]
agents = 2
workers = 2
"""


@pytest.fixture
def started(tmp_path: Path):
    """Start a simulation in its own process session, wait until its two workers train, and kill it
    at the end.
    """
    (tmp_path / "long.toml").write_text(EXPERIMENT)
    command = [sys.executable, "-m", "coordinator.cli", "simulate", "long.toml"]
    # tests in the background ignore ctrl-C, and their children would inherit that
    ours = signal.signal(signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    signal.signal(signal.SIGINT, ours)
    try:
        yield process, wait_for_training(process.pid)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def wait_for_training(parent: int) -> list[int]:
    """Return the workers of a simulation once both have used more processor time than a start
    takes.
    """
    limit = time.monotonic() + 180
    while time.monotonic() < limit:
        found = children(parent)
        if len(found) == 2 and all(seconds(pid) > 0.5 for pid in found):
            return found
        time.sleep(0.1)
    raise AssertionError("the workers did not train")


def children(parent: int) -> list[int]:
    return [
        int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    ] + [
        int(pid)
        for task in Path(f"/proc/{parent}/task").iterdir()
        if task.name != str(parent)
        for pid in (task / "children").read_text().split()
    ]


def seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_gone(pid: int, within: float = 10.0) -> bool:
    limit = time.monotonic() + within
    while time.monotonic() < limit:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.1)
    return False


def test_workers_receive_no_data():
    """Workers load data themselves, so a source with loaded data is sent without them."""
    source = DataSource("digits", None, 3, "iid", 0, 0.2)
    assert len(source.parts) == 3
    sent = pickle.dumps(source)
    assert len(sent) < 1000
    assert pickle.loads(sent) == source


@pytest.mark.parametrize(("threads", "method"), [(1, "fork"), (2, "forkserver")])
def test_only_a_process_without_threads_is_forked(monkeypatch, threads, method):
    monkeypatch.setattr(worker_processes.threading, "active_count", lambda: threads)
    monkeypatch.setattr(worker_processes.torch.cuda, "is_available", lambda: False)
    assert worker_processes.make_process_context().get_start_method() == method


@pytest.mark.slow
def test_a_killed_worker_ends_the_run_with_an_error(started):
    process, trained = started
    os.kill(trained[0], signal.SIGKILL)
    said, _ = process.communicate(timeout=PATIENCE)
    assert "error: a worker process was killed" in said
    assert "Traceback" not in said
    assert process.returncode == 1


def test_ctrl_c_stops_long_training_at_once(started):
    process, trained = started
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE)
    assert said.endswith("interrupted\n"), "a simulation stores whole rounds, and none has ended"
    assert "Traceback" not in said
    assert process.returncode == 130
    assert all(is_gone(pid) for pid in trained)


@pytest.mark.slow
def test_workers_end_with_a_killed_parent(started):
    process, trained = started
    process.kill()
    assert all(is_gone(pid) for pid in trained)
