"""What is used in a month is counted over restarts, and over several agents of a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_agent.device.monthly_use import MonthlyUse

WORTH = 1000


class Agent:
    """An agent's count, with the bytes, month and clock that the test sets."""

    def __init__(self, path: Path) -> None:
        self.bytes, self.month, self.now = 0, "2026-11", 0.0
        self.use = MonthlyUse(path, WORTH, lambda: self.month, lambda: self.now)
        self.use.watch(lambda: self.bytes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "traffic.json"


def test_bytes_are_counted_over_restarts(path: Path) -> None:
    first = Agent(path)
    first.bytes = 300
    assert first.use.read() == 300
    first.use.close()
    second = Agent(path)
    second.bytes = 20
    assert second.use.read() == 320
    second.use.close()
    assert json.loads(path.read_text()) == {"2026-11": 320}


def test_agents_of_one_device_share_the_count(path: Path) -> None:
    one, other = Agent(path), Agent(path)
    one.bytes, other.bytes = WORTH, 5
    assert one.use.read() == WORTH
    assert other.use.read() == WORTH + 5
    one.bytes, other.bytes = 2 * WORTH, 2 * WORTH
    assert other.use.read() == 3 * WORTH
    assert one.use.read() == 4 * WORTH


def test_few_bytes_are_written_once_a_minute(path: Path) -> None:
    agent = Agent(path)
    agent.use.read()
    agent.bytes = 10
    assert agent.use.read() == 10
    assert json.loads(path.read_text()) == {"2026-11": 0}
    agent.now = 61.0
    assert agent.use.read() == 10
    assert json.loads(path.read_text()) == {"2026-11": 10}


def test_a_wrong_clock_resets_nothing(path: Path) -> None:
    agent = Agent(path)
    agent.bytes = 100
    agent.use.close()
    agent.month, agent.bytes = "1970-01", 103
    assert agent.use.read() == 3
    agent.month = "2026-11"
    assert agent.use.read() == 100


def test_the_month_of_a_wrong_clock_is_counted_beside_many_later_ones(path: Path) -> None:
    agent = Agent(path)
    for number in range(1, 13):
        agent.month = f"2025-{number:02d}"
        agent.bytes += 100
        agent.use.close()
    agent.month = "1970-01"
    for expected in (5, 10):
        agent.bytes += 5
        agent.use.close()
        assert agent.use.read() == expected


@pytest.mark.parametrize(
    "content", ['{"2026-11": 1', '{"2026-11": -9}', '{"2026-11": 1e999}', "[" * 100_000]
)
def test_a_damaged_file_is_replaced(
    path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    path.parent.mkdir()
    path.write_text(content)
    agent = Agent(path)
    agent.bytes = 7
    assert agent.use.read() == 7
    assert "is damaged" in caplog.text
    agent.use.close()
    assert json.loads(path.read_text()) == {"2026-11": 7}
