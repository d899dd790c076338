"""An agent with a monthly budget pauses when it is used up, also after a restart."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.processes import AGENT, COORDINATOR, Running, Start, wait_for_words
from tests.support.waiting import PATIENCE

QUICK = ["train.steps=1", "evaluate.every=1000", "evaluate.between=false", "evaluate.devices=false"]


@pytest.mark.processes
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "limit", "reason"),
    [
        ("traffic<300kB", 300_000, "pausing: used 300.0 kB of traffic"),
        ("energy<1kJ", 1000, "pausing: used 1kJ of energy this month"),
    ],
)
def test_an_agent_pauses_when_its_budget_is_used_up(
    start: Start, broker: str, tmp_path: Path, when: str, limit: int, reason: str
) -> None:
    run = ["--method", "fedavg", "--model", "mlp-small", "--min-agents", "1", "--rounds", "1000"]
    settings = [word for one in QUICK for word in ("--set", one)]
    start(*COORDINATOR, "start", "--broker", broker, "--name", "r", *run, *settings)

    def join() -> Running:
        return start(
            *(*AGENT, "join", "--broker", broker, "--name", "a", "--spool", "spool"),
            *("--when", when, "--watts", "10000"),
            variables={"ESPALIER_STATE": str(tmp_path / "state")},
        )

    agent = join()
    assert wait_for_words(agent, tmp_path / "1.out", reason)
    agent.send_signal(signal.SIGINT)
    assert agent.wait(PATIENCE) == 0
    file = tmp_path / "state" / f"{when.partition('<')[0]}.json"
    (used,) = json.loads(file.read_text()).values()
    assert used >= limit
    agent = join()
    assert wait_for_words(agent, tmp_path / "2.out", reason)
    agent.send_signal(signal.SIGINT)
    assert agent.wait(PATIENCE) == 0
