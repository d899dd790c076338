"""Events as log records."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from coordinator.observe import events
from coordinator.observe.event_readers.log_output import write_log
from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.round_records import Entry, RoundRecord, Score
from coordinator.settings.config import Config


def context() -> ReaderContext:
    fields = {"run": "r", "round": 0}
    return ReaderContext(Path("unused"), Config(), lambda: 0.0, log_fields=fields)


ENTRY = Entry("pi", "w0.5-d2", "folded", loss=0.25, seconds=1.5)


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        (events.RoundStarted(3, 9, {}), {"event": "round began", "asked": 0}),
        (
            events.UpdateFolded(ENTRY),
            {
                "event": "folded",
                "agent": "pi",
                "submodel": "w0.5-d2",
                "outcome": "folded",
                "loss": 0.25,
                "seconds": 1.5,
            },
        ),
        (events.LinkChanged("timed out"), {"event": "broker lost", "levelname": "WARNING"}),
        (events.LinkChanged(""), {"event": "broker returned", "levelname": "INFO"}),
        (events.LinkChanged("503", "store"), {"event": "store lost", "levelname": "WARNING"}),
        (events.LinkChanged("", "store"), {"event": "store returned", "levelname": "INFO"}),
        (events.StageFinished("finish", 0.5), {"event": "finish", "seconds": 0.5}),
        (
            events.RunEnded("stopped", "stopped at once"),
            {"event": "coordinator ended", "phase": "stopped"},
        ),
        (events.AgentJoined("pi", True), {"event": "came", "agent": "pi"}),
        (events.AgentLeft("pi", "went away"), {"event": "went", "agent": "pi"}),
        (events.AgentRefused("pi", "no"), {"event": "agent refused", "agent": "pi"}),
        (events.LeaseExpired("pi", 9.0), {"event": "lease expired", "agent": "pi"}),
        (
            events.TaskFailed("pi", "w1", "failed: disk"),
            {"event": "failed", "agent": "pi", "submodel": "w1", "outcome": "failed: disk"},
        ),
        (
            events.Rejected("update", "pi", "not finite", "pi", "t"),
            {"event": "refused", "agent": "pi", "transfer": "t"},
        ),
        (
            events.Rejected("malformed", "fl/v1/r/x", "no", None, topic="fl/v1/r/x"),
            {"event": "refused", "agent": None, "topic": "fl/v1/r/x"},
        ),
    ],
)
def test_an_event_is_one_record_with_its_fields(
    event: events.Event, fields: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write_log(context())(event)
    (record,) = caplog.records
    assert {name: getattr(record, name) for name in fields} == fields


def test_a_finished_round_logs_each_task_without_an_update_and_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    score = Score("w1", "central", 0.5, 1.0, 5, metrics={"accuracy": 0.5})
    write_log(context())(
        events.RoundEnded(
            RoundRecord(
                3,
                2.0,
                {},
                {},
                entries=(ENTRY, Entry("jet", "w1", "lost")),
                scores=(score,),
                bytes_up=7,
            )
        )
    )
    lost, ended = caplog.records
    assert (lost.agent, lost.outcome) == ("jet", "lost")  # type: ignore[attr-defined]
    assert (ended.folded, ended.asked, ended.bytes_up, ended.accuracy) == (1, 2, 7, 0.5)  # type: ignore[attr-defined]


def test_records_of_a_round_carry_its_number_and_a_pause_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    known = context()
    read = write_log(known)
    read(events.RoundStarted(4, 9, {}))
    assert known.log_fields == {"run": "r", "round": 4}
    for _ in range(3):
        read(events.RunPaused())
    assert [record.getMessage() for record in caplog.records][1:] == ["paused after round 4"]


def test_a_reason_to_wait_is_logged_once_before_each_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    read = write_log(context())
    for _ in range(2):
        for _ in range(3):
            read(events.RoundDelayed("no agent has room"))
        read(events.RoundStarted(4, 9, {}))
    assert [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ] == ["no round starts: no agent has room"] * 2


@pytest.mark.parametrize(
    "event",
    [
        events.LoopTurned(),
        events.FleetChanged(),
        events.StageFinished("fold", 0.1),
        events.PrivacySpent(1.0),
    ],
)
def test_frequent_events_are_not_logged(
    event: events.Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    write_log(context())(event)
    assert not caplog.records
