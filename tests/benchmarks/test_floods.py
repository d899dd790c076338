"""The benchmark of floods: its goals, and a small number of revocations."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.floods.command import judge
from benchmarks.floods.mass_revocation import measure_revocations
from benchmarks.floods.trial import Arm, Watch
from coordinator.broker import client_disconnection
from tests.support.brokers import needs_mosquitto

MODEL = 10_000_000  # bytes


def make_arm(seconds: float, resident: float) -> Arm:
    memory = {"coordinator": [resident], "inference": [resident]}
    return Arm([seconds], [0.1], 0, [0.1], 0, memory)


@pytest.mark.parametrize(
    ("seconds", "peak", "after", "met"),
    [
        (1.4, 129.0, 109.0, True),
        (1.6, 129.0, 109.0, False),
        (1.4, 131.0, 109.0, False),
        (1.4, 129.0, 111.0, False),
    ],
)
def test_a_row_compares_rounds_and_memory_with_the_goals(
    seconds: float, peak: float, after: float, met: bool
) -> None:
    arms = make_arm(1.0, 100.0), make_arm(seconds, peak), make_arm(1.0, after)
    row = judge("none", Watch(*arms, count=1, seconds=1.0), MODEL, firewall=False)
    assert row.ratio == seconds
    assert row.met == met


@pytest.mark.broker
@pytest.mark.processes
@needs_mosquitto
def test_many_agents_are_revoked_in_several_messages_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_disconnection, "AT_ONCE", 2)
    found = measure_revocations(5, tmp_path)
    assert found.met, found
