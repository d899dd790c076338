"""The processes that train in a simulation: what becomes of their deaths, of ctrl-C, and of a
parent that is killed.

Slow, since each test starts a whole simulation as a person would: signals go to processes, not to
functions.
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

from coordinator.simulate.data_source import Source
from coordinator.simulate.workers import blank

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="processes are looked at in /proc"
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
    """A simulation in a session of its own, as soon as its two workers train; killed at the end
    whatever it did.
    """
    (tmp_path / "long.toml").write_text(EXPERIMENT)
    command = [sys.executable, "-m", "coordinator.cli", "simulate", "long.toml"]
    # tests that run in the background ignore it, and so would what they start
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
        yield process, training(process.pid)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def training(parent: int) -> list[int]:
    """The workers of a simulation, as soon as both have used a processor for longer than it takes
    to start as a copy.
    """
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        servers = [
            pid
            for pid in children(parent)
            if "forkserver" in Path(f"/proc/{pid}/cmdline").read_text()
        ]
        found = [pid for server in servers for pid in children(server)]
        if len(found) == 2 and all(seconds(pid) > 0.5 for pid in found):
            return found
        time.sleep(0.1)
    raise AssertionError("the workers never trained")


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


def gone(pid: int, within: float = 10.0) -> bool:
    limit = time.monotonic() + within
    while time.monotonic() < limit:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.1)
    return False


def test_workers_are_sent_no_data():
    """Each loads them once: a source that has loaded its own is as small on its way as one that has
    not.
    """
    source = Source("digits", None, 3, "iid", 0, 0.2)
    assert len(source.parts) == 3
    assert len(pickle.dumps(blank(source))) < 1000 < len(pickle.dumps(source))


def test_a_worker_that_is_killed_ends_the_run_with_a_word(started):
    process, workers = started
    os.kill(workers[0], signal.SIGKILL)
    said, _ = process.communicate(timeout=60)
    assert "error: a worker process was ended from outside" in said
    assert "Traceback" not in said
    assert process.returncode == 1


def test_ctrl_c_stops_long_training_at_once_and_quietly(started):
    process, workers = started
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert said.endswith("interrupted; resume with --resume\n")
    assert "Traceback" not in said
    assert process.returncode == 130
    assert all(gone(pid) for pid in workers)


def test_workers_end_with_a_parent_that_is_killed(started):
    process, workers = started
    process.kill()
    assert all(gone(pid) for pid in workers)
