"""The benchmark of browsers that train beside PyTorch agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.phones.command import DIFFERENCE, format_conclusion
from benchmarks.phones.mixed_fleet import (
    BROWSERS,
    NATIVES,
    RUN,
    find_median_step,
    find_shard,
    measure,
)
from coordinator.observe.round_records import Entry
from tests.support.phone_pages import PATIENCE, needs_page, place_graphs


def test_each_agent_has_its_own_part_of_the_digits() -> None:
    shards = [find_shard(name) for name in (*BROWSERS, *NATIVES)]
    assert shards == ["0/4", "1/4", "2/4", "3/4"]


def test_the_median_leaves_out_other_agents_and_steps_without_report() -> None:
    entries = [Entry("b0", "w1.0", "folded", step=one) for one in (0.0, 1.0, 2.0, 9.0)]
    assert find_median_step([*entries, Entry("n2", "w1.0", "folded", step=50.0)], BROWSERS) == 2.0


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.broker
@pytest.mark.timeout(2 * PATIENCE)
@needs_page
@pytest.mark.usefixtures("forked_commands")
def test_two_rounds_are_measured(tmp_path: Path) -> None:
    place_graphs(tmp_path, RUN)
    made = measure(tmp_path, 2, "embedded", print)
    assert made.loss_max_abs_diff <= DIFFERENCE
    assert 1e6 < made.payload_bytes < 4e6
    assert min(made.accuracy, made.first_step_s, made.step_ms_browser, made.step_ms_native) > 0
    assert made.memory_mb > 10
    assert f"{made.accuracy:.3f}" in format_conclusion(made)
