"""The benchmark of the coordinator's core: the load that it generates. Its timings are
not tested.
"""

from __future__ import annotations

import json
from itertools import islice

from click.testing import CliRunner

from benchmarks import event_processing
from coordinator.round import round_events as on


def test_it_prints_a_row_for_each_number_of_agents() -> None:
    done = CliRunner().invoke(
        event_processing.command,
        ["--agents", "2", "--agents", "7", "--format", "json"],
        catch_exceptions=False,
    )
    made = json.loads(done.stdout.splitlines()[-1])
    assert [row["agents"] for row in made["rows"]] == [2, 7]
    for row in made["rows"]:
        assert row.keys() == {"agents", "beat_us", "update_us", "tick_us", "tick_worst_us"}
        assert all(value > 0 for value in row.values())
        assert row["tick_worst_us"] >= row["tick_us"]
    assert made["machine"]["processors"] > 0


def test_text_is_a_table() -> None:
    done = CliRunner().invoke(event_processing.command, ["--agents", "2"], catch_exceptions=False)
    head, row = done.stdout.splitlines()
    assert head.split()[0] == "agents"
    assert row.split()[0] == "2"


def test_all_agents_are_at_work_and_some_updates_wait_for_earlier_names() -> None:
    names = ["a", "b", "c", "d"]
    begun = event_processing.start_round(names)
    assert begun.phase is not None
    assert begun.phase.working == 4
    assert all(state.task.lease == 75.0 for state in begun.tasks.values())
    order = [event.key.agent for event in event_processing.make_updates(names, 0)]
    assert sorted(order) == names != order
    came, _ = event_processing.drive(
        begun, on.UpdateCame(1.0, event_processing.make_task("b").key, 1, "t", "d" * 64, 0.5)
    )
    assert came.phase is not None
    assert (came.phase.came, len(came.phase.whole)) == (1, 1)


def test_heartbeats_come_every_fifteen_seconds_from_each_agent_and_show_progress() -> None:
    made = islice(event_processing.make_heartbeats(["a", "b"]), 4)
    assert [(beat.now, beat.agent, beat.step) for beat in made] == [
        (0.0, "a", 1),
        (7.5, "b", 1),
        (15.0, "a", 2),
        (22.5, "b", 2),
    ]


def test_ticks_come_every_half_second_and_heartbeats_at_their_times() -> None:
    made = list(event_processing.make_ticks(["a", "b"]))
    assert [event.now for event in made if isinstance(event, on.Ticked)] == [
        0.5 * number for number in range(1, 481)
    ]
    assert [event.now for event in made] == sorted(event.now for event in made)
    assert sum(isinstance(event, on.AgentBeat) for event in made) == 32
