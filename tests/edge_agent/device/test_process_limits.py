"""Limits of a process's processors and memory are enforced."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from edge_agent.device import process_limits
from edge_agent.device.process_limits import (
    Limits,
    ProcessLimiter,
    count_cpus,
    measure_free_memory,
    parse_size,
)
from federated.errors import UsageError
from tests.support.boards import load_board

pytestmark = pytest.mark.timed
# prints the fraction of a processor that it got in all, and in the best of its windows
BURN = """
import sys, time
sys.stdin.readline()
marks = [(time.perf_counter(), time.process_time())]
for _ in range(4):
    while time.perf_counter() - marks[-1][0] < 0.5: pass
    marks.append((time.perf_counter(), time.process_time()))
share = lambda one, other: (other[1] - one[1]) / (other[0] - one[0])
print(share(marks[0], marks[-1]), max(map(share, marks, marks[1:])))
"""
EAT = """
import sys
sys.stdin.readline()
hoard = bytearray(400_000_000)
for i in range(0, len(hoard), 4096): hoard[i] = 1
"""


@pytest.fixture(params=["groups", "fallback"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the way of limiting: control groups where writable, or the fallbacks."""
    if request.param == "fallback":
        monkeypatch.setattr(process_limits, "_list_own_groups", lambda controller, *where: [])
    return str(request.param)


def run(code: str, bounds: Limits) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with closing(ProcessLimiter(process.pid, bounds)) as cage:
        out, err = process.communicate("go\n", timeout=60)
        return subprocess.CompletedProcess(code, process.returncode, out, err), cage.how


@pytest.mark.parametrize("share", [0.25, 0.6])
def test_process_gets_only_its_fraction_of_a_processor(way: str, share: float) -> None:
    """Other processes may use some of a processor: the limit is exceeded in no case, and reached
    in the best window.
    """
    done, how = run(BURN, Limits(cpus=share))
    got, best = map(float, done.stdout.split())
    assert got <= share + 0.12, how
    if best < share - 0.12:  # perhaps because of other processes
        free = min(float(run(BURN, Limits(cpus=1.0))[0].stdout.split()[0]) for _ in range(2))
        assert share * free - 0.12 <= best, how


def test_memory_is_limited(way: str) -> None:
    done, how = run(EAT, Limits(memory=200_000_000))
    assert done.returncode != 0, how
    assert run(EAT, Limits(memory=900_000_000))[0].returncode == 0


def test_control_groups_are_removed_on_close() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        cage = ProcessLimiter(process.pid, Limits(cpus=0.5, memory=200_000_000))
        process.communicate(b"\n", timeout=60)
    cage.close()
    # other tests have theirs meanwhile
    assert not list(Path("/sys/fs/cgroup").glob(f"**/espalier-{process.pid}-*"))


def test_groups_of_killed_agents_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_limits, "_list_own_groups", lambda controller, *where: [tmp_path])
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left, used = (
        tmp_path / f"espalier-{gone.pid}-abc123",
        tmp_path / f"espalier-{os.getppid()}-abc123",
    )
    left.mkdir()
    used.mkdir()
    ProcessLimiter(os.getpid(), Limits(cpus=0.5)).close()
    assert used.is_dir()
    assert not left.exists()


def test_unified_hierarchy_uses_one_group_for_both_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    monkeypatch.setattr(process_limits, "_list_own_groups", lambda controller, *where: [tmp_path])
    cage = ProcessLimiter(
        os.getpid(), Limits(cpus=0.5, memory=200_000_000)
    )  # plain files, without processes
    (group,) = tmp_path.glob("espalier-*")
    assert {path.name: path.read_text() for path in group.iterdir()} == {
        "cpu.max": "10000 20000",
        "memory.max": "200000000",
        "memory.swap.max": "0",
        "cgroup.procs": str(os.getpid()),
    }
    cage.close()


def test_available_resources_respect_limits() -> None:
    assert count_cpus(Limits(cpus=0.5)) == 0.5
    # this process has run other tests before
    limit = psutil.Process().memory_info().rss + 500_000_000
    assert 0 < measure_free_memory(Limits(memory=limit)) < limit
    assert measure_free_memory(Limits()) > 0


@pytest.mark.parametrize(
    ("name", "cpus", "memory"),
    [
        # limit - use + what is only cached
        ("container-v1", 0.5, 536_870_912 - 209_715_200 + 31_457_280),
        # of the pod, which is tighter than its container
        ("container-v2", 0.75, 1_073_741_824 - 419_430_400 + 73_400_320),
        ("pi5", None, 6_710_400 * 1024),  # no limit: what the kernel could give
    ],
)
def test_tightest_control_group_applies(name: str, cpus: float | None, memory: int) -> None:
    root = load_board(name).root
    here = len(os.sched_getaffinity(0))
    assert count_cpus(Limits(), root=root) == (min(cpus, here) if cpus else here)
    assert measure_free_memory(Limits(), root=root) == memory


def test_the_limits_of_another_process_can_be_read() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with closing(ProcessLimiter(process.pid, Limits(cpus=0.25))):
        assert count_cpus(Limits(), process.pid) <= 1
        assert count_cpus(Limits(cpus=0.25), process.pid) == 0.25
        process.communicate(b"\n", timeout=60)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MB", 512_000_000),
        ("1GiB", 2**30),
        ("1.5 gb", 1_500_000_000),
        ("300000", 300_000),
        ("64k", 64_000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-5MB", "5XB", "5 MB 3"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a size"):
        parse_size(text)


def test_invalid_limits_are_refused() -> None:
    with pytest.raises(UsageError, match="64MiB"):
        Limits(memory=1000)
    with pytest.raises(UsageError, match=r"at most 1024 TiB, found 9\.09495e\+10 TiB"):
        Limits(memory=parse_size("99999999999999GB"))
    with pytest.raises(UsageError, match="expected a size"):
        parse_size("9" * 400)
