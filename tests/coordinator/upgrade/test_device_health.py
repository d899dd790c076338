"""The judgement about a canary of the agents' software."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.upgrade.device_health import Health, find_settled, judge
from federated.wire.release_messages import Installed

NEW = "0.3.0-abababab"
AGENTS = ("a", "b")
GOOD = {name: Installed(name, NEW, "0.3.0") for name in AGENTS}
BROKEN = {**GOOD, "b": Installed("b", "", "0.2.0", NEW, "its checks failed")}
SILENT = {"a": GOOD["a"], "b": Installed("b", "", "0.2.0", reason="the index is down")}
# before: 2 of 20 tasks failed; after: of 5 tasks one may fail, since a half is rounded up
WELL = Health(AGENTS, {"a": (9, 10), "b": (9, 10)}, {"a": (2, 3), "b": (2, 2)})


def test_a_healthy_canary_may_be_promoted() -> None:
    verdict = judge(NEW, AGENTS, GOOD, WELL)
    assert verdict.good
    assert verdict.notes == ("1 of 5 tasks failed, before 2 of 20",)


@pytest.mark.parametrize(
    ("reports", "health", "reason"),
    [
        (BROKEN, WELL, "b refused it: its checks failed"),
        (SILENT, WELL, "not installed yet by b (the index is down)"),
        ({}, WELL, "not installed yet by a, b"),
        (GOOD, replace(WELL, joined=("a",)), "b installed it, but did not join the run with it"),
        (GOOD, replace(WELL, after={}), "none of 2 agents answered a task yet"),
        (GOOD, replace(WELL, after={"a": (0, 2)}), "none of 2 agents answered a task yet"),
        (GOOD, replace(WELL, after={"a": (1, 3)}), "2 of 3 tasks failed, before 2 of 20"),
        (GOOD, replace(WELL, before={}), "1 of 5 tasks failed, before 0 of 0"),
    ],
)
def test_what_speaks_against_a_canary(
    reports: dict[str, Installed], health: Health, reason: str
) -> None:
    assert judge(NEW, AGENTS, reports, health).reasons == (reason,)


def test_an_agent_is_settled_once_it_answered_a_task_or_refused() -> None:
    health = replace(WELL, after={"a": (1, 1), "b": (0, 1)})
    assert find_settled(AGENTS, NEW, GOOD, health) == {"a"}
    assert find_settled(AGENTS, NEW, BROKEN, health) == {"a", "b"}
    assert find_settled(AGENTS, NEW, SILENT, health) == {"a"}
    assert find_settled(AGENTS, NEW, GOOD, replace(health, joined=())) == set()
