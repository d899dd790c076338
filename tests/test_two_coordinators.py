"""Two coordinators of one run: a standby with the same folder, or a later one with a copy of it."""

from __future__ import annotations

import shutil
import signal
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from coordinator.store.run_lock import SHORTEST
from coordinator.store.run_store import Store
from tests.support.processes import AGENT, COORDINATOR, Running, Start, wait_for_words
from tests.support.waiting import PATIENCE, eventually

pytestmark = [
    pytest.mark.processes,
    pytest.mark.broker,
    pytest.mark.slow,
]
RUN = ["--name", "r", "--method", "fedavg", "--model", "mlp-small", "--min-agents", "1"]
QUICK = ["train.steps=1", "evaluate.every=1000", "evaluate.between=false", "evaluate.devices=false"]


def test_the_later_coordinator_leads_and_the_earlier_one_exits(
    start: Start, tmp_path: Path
) -> None:
    """The broker loses everything that it retained before the earlier one wakes up. In
    tests/benchmarks/test_attacks.py it keeps that.
    """
    with brokers.start("127.0.0.1", 0, "embedded", tmp_path / "broker") as broker:
        where = ["--broker", broker.address]
        common = [*COORDINATOR, "start", *where, *RUN, "--rounds", "1000", "--data", "digits"]
        common += [word for one in QUICK for word in ("--set", one)]
        earlier = start(*common, "--runs", "runs")
        agent = start(*AGENT, "join", *where, "--run", "r", "--name", "a", "--spool", "spool")
        eventually(lambda: list((tmp_path / "runs" / "r").glob("round-000002*")))
        earlier.send_signal(signal.SIGSTOP)
        shutil.copytree(tmp_path / "runs", tmp_path / "copy")
        later = start(*common, "--runs", "copy", "--resume")
        newest = max((tmp_path / "copy" / "r").glob("round-*")).name
        eventually(lambda: max((tmp_path / "copy" / "r").glob("round-*")).name > newest)
        broker.restart()
        earlier.send_signal(signal.SIGCONT)
        assert earlier.wait(PATIENCE) == 9, (tmp_path / "0.err").read_text()
        assert "took over run 'r'" in (tmp_path / "0.err").read_text()
        newest = max((tmp_path / "copy" / "r").glob("round-*")).name
        eventually(lambda: max((tmp_path / "copy" / "r").glob("round-*")).name > newest)
        assert agent.poll() is None
        later.send_signal(signal.SIGINT)
        assert later.wait(PATIENCE) in (0, 130)


def find_newest(tmp_path: Path) -> str:
    return max((path.name for path in (tmp_path / "runs" / "r").glob("round-*")), default="")


def start_pair(start: Start, tmp_path: Path, broker: str) -> tuple[Running, Running]:
    """Start a coordinator, its standby and an agent; return the coordinators during a round."""
    where = ["--broker", broker]
    common = [*COORDINATOR, "start", *where, *RUN, "--rounds", "1000", "--data", "digits"]
    leader = start(*common, *(word for one in QUICK for word in ("--set", one)))
    start(*AGENT, "join", *where, "--run", "r", "--name", "a", "--spool", "spool")
    eventually(lambda: find_newest(tmp_path) >= "round-000002")
    standby = start(*COORDINATOR, "start", *where, "--name", "r", "--standby", f"{SHORTEST:g}")
    assert wait_for_words(standby, tmp_path / "2.out", "standing by until")
    newest = find_newest(tmp_path)
    eventually(lambda: find_newest(tmp_path) > newest)
    assert standby.poll() is None
    return leader, standby


def check_end(start: Start, tmp_path: Path, standby: Running) -> None:
    """Let the standby finish some rounds, stop the run, and check that each round was folded once,
    and that all files are intact.
    """
    for _ in range(3):
        newest = find_newest(tmp_path)
        eventually(lambda newest=newest: find_newest(tmp_path) > newest)
    assert start(*COORDINATOR, "stop", "r").wait(PATIENCE) == 0
    assert standby.wait(PATIENCE) == 0, (tmp_path / "2.err").read_text()
    assert start(*COORDINATOR, "check", "r").wait(PATIENCE) == 0
    with closing(Store.open(tmp_path / "runs", "r", read_only=True)) as store:
        rounds = [number for number, *_ in store.read_history()]
        assert rounds == list(range(1, len(rounds) + 1))
        for number in rounds:
            entries = [(one.agent, one.outcome) for one in store.read_entries(number)]
            assert entries == [("a", "folded")], number


def test_a_standby_resumes_the_run_of_a_killed_coordinator(
    start: Start, tmp_path: Path, broker: str
) -> None:
    leader, standby = start_pair(start, tmp_path, broker)
    leader.kill()
    assert wait_for_words(standby, tmp_path / "2.out", "resuming it")
    check_end(start, tmp_path, standby)


def test_a_suspended_coordinator_that_wakes_up_leaves_the_run_to_the_standby(
    start: Start, tmp_path: Path, broker: str
) -> None:
    leader, standby = start_pair(start, tmp_path, broker)
    leader.send_signal(signal.SIGSTOP)
    assert wait_for_words(standby, tmp_path / "2.err", "gave no sign of life")
    newest = find_newest(tmp_path)
    eventually(lambda: find_newest(tmp_path) > newest)
    leader.send_signal(signal.SIGCONT)
    assert leader.wait(PATIENCE) == 9, (tmp_path / "0.err").read_text()
    assert "took over run 'r'" in (tmp_path / "0.err").read_text()
    check_end(start, tmp_path, standby)


def test_a_standby_ends_with_the_run(start: Start, tmp_path: Path, broker: str) -> None:
    leader, standby = start_pair(start, tmp_path, broker)
    assert start(*COORDINATOR, "stop", "r", "--now").wait(PATIENCE) == 0
    assert leader.wait(PATIENCE) == 0
    assert standby.wait(PATIENCE) == 0
    assert "has finished or was stopped" in (tmp_path / "2.out").read_text()
