"""An agent with a limit to its monthly traffic pauses when it is used up, also after a restart."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.processes import AGENT, COORDINATOR, Running, Start, wait_for_words

LIMIT = 300_000
QUICK = ["train.steps=1", "evaluate.every=1000", "evaluate.between=false", "evaluate.devices=false"]


@pytest.mark.processes
@pytest.mark.broker
@pytest.mark.slow
def test_an_agent_pauses_when_its_traffic_is_used_up(
    start: Start, broker: str, tmp_path: Path
) -> None:
    run = ["--method", "fedavg", "--model", "mlp-small", "--min-agents", "1", "--rounds", "1000"]
    settings = [word for one in QUICK for word in ("--set", one)]
    start(*COORDINATOR, "start", "--broker", broker, "--name", "r", *run, *settings)

    def join() -> Running:
        return start(
            *(*AGENT, "join", "--broker", broker, "--name", "a", "--spool", "spool"),
            *("--when", f"traffic<{LIMIT}"),
            variables={"ESPALIER_STATE": str(tmp_path / "state")},
        )

    agent = join()
    assert wait_for_words(agent, tmp_path / "1.out", "pausing: used 300.0 kB of traffic")
    agent.send_signal(signal.SIGINT)
    assert agent.wait(60) == 0
    (used,) = json.loads((tmp_path / "state" / "traffic.json").read_text()).values()
    assert used >= LIMIT
    agent = join()
    assert wait_for_words(agent, tmp_path / "2.out", "pausing: used 300.0 kB of traffic")
    agent.send_signal(signal.SIGINT)
    assert agent.wait(60) == 0
