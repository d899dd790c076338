"""A coordinator that sleeps while another one, with a copy of its folder, takes over its run."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from tests.support.processes import AGENT, COORDINATOR, Start
from tests.support.waiting import eventually

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
        eventually(lambda: list((tmp_path / "runs" / "r").glob("round-000002*")), 120)
        earlier.send_signal(signal.SIGSTOP)
        shutil.copytree(tmp_path / "runs", tmp_path / "copy")
        later = start(*common, "--runs", "copy", "--resume")
        newest = max((tmp_path / "copy" / "r").glob("round-*")).name
        eventually(lambda: max((tmp_path / "copy" / "r").glob("round-*")).name > newest, 120)
        broker.restart()
        earlier.send_signal(signal.SIGCONT)
        assert earlier.wait(60) == 9, (tmp_path / "0.err").read_text()
        assert "took over run 'r'" in (tmp_path / "0.err").read_text()
        newest = max((tmp_path / "copy" / "r").glob("round-*")).name
        eventually(lambda: max((tmp_path / "copy" / "r").glob("round-*")).name > newest, 120)
        assert agent.poll() is None
        later.send_signal(signal.SIGINT)
        assert later.wait(60) in (0, 130)
