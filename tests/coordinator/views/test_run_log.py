"""The events of a run: reading, filtering and following them."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordinator.cli.main import main
from coordinator.views import run_log
from coordinator.views.run_log import (
    explain_missing,
    follow_events,
    format_event,
    match_events,
    read_events,
    read_recent_errors,
    read_recent_events,
)
from federated.errors import StoreError
from federated.runtime import logs

log = logging.getLogger("coordinator.test")


def messages(folder: Path) -> list[str]:
    return [event["message"] for event in read_events(folder)]


def test_events_come_oldest_first_through_rotated_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LARGEST", 400)
    with logs.record_log(tmp_path / logs.EVENTS, {}):
        for number in range(8):
            log.info("event %d", number)
    assert len(list(tmp_path.glob("log.jsonl*"))) > 2
    assert messages(tmp_path) == [f"event {number}" for number in range(8)]


def test_events_can_be_chosen_by_agent_and_round(tmp_path: Path) -> None:
    fields: dict[str, object] = {"run": "r", "round": 1}
    with logs.record_log(tmp_path / logs.EVENTS, fields):
        log.info("a in 1", extra={"agent": "a"})
        fields["round"] = 2
        log.info("a in 2", extra={"agent": "a"})
        log.info("b in 2", extra={"agent": "b"})
    assert [event["message"] for event in read_events(tmp_path, match_events("a", 2))] == ["a in 2"]
    assert [event["message"] for event in read_events(tmp_path, match_events(number=2))] == [
        "a in 2",
        "b in 2",
    ]


def test_a_damaged_line_is_reported_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.dumps({"time": "2026-01-01T00:00:00+00:00", "message": "whole"})
    (tmp_path / logs.EVENTS).write_text(f'{{"time": "20\n[1]\n{good}\n{{"message": "no end')
    for _ in range(2):
        assert messages(tmp_path) == ["whole"]
    reports = capsys.readouterr().err.splitlines()
    assert len(reports) == 2
    assert f"{logs.EVENTS}, line 1:" in reports[0]
    assert f"{logs.EVENTS}, line 2:" in reports[1]


def test_following_shows_new_events_also_after_a_rotation(tmp_path: Path) -> None:
    path, steps = tmp_path / logs.EVENTS, []

    def write(text: str) -> None:
        with path.open("a") as file:
            file.write(json.dumps({"time": "t", "message": text}) + "\n")

    def wait(seconds: float) -> None:
        steps.append(seconds)
        if len(steps) == 1:
            write("second")
        elif len(steps) == 2:
            write("third")
            path.rename(tmp_path / "log.jsonl.1")
            write("fourth")

    write("first")
    found = [
        event["message"]
        for event in follow_events(tmp_path, lambda event: True, wait, lambda: len(steps) == 3)
    ]
    assert found == ["first", "second", "third", "fourth"]


def test_the_last_warnings_are_found(tmp_path: Path) -> None:
    with logs.record_log(tmp_path / logs.EVENTS, {}):
        for number in range(3):
            log.warning("w%d", number)
            log.info("i%d", number)
    assert [event["message"] for event in read_recent_errors(tmp_path, 2)] == ["w1", "w2"]
    assert read_recent_errors(tmp_path / "nothing", 2) == []


def test_a_damaged_recent_line_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    event = {"time": "2026-01-01T00:00:00+00:00", "level": "ERROR", "message": "whole"}
    lines = [json.dumps(event)] * 9 + ["damaged", json.dumps(event)]
    (tmp_path / logs.EVENTS).write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr(run_log, "TAIL", 400)  # begins in the middle of a line
    for _ in range(2):
        assert 2 < len(read_recent_events(tmp_path)) < 10
    (report,) = capsys.readouterr().err.splitlines()
    assert f"{logs.EVENTS}, line 10:" in report


def test_texts_of_agents_move_no_cursor() -> None:
    line = format_event(
        {
            "time": "2026-01-01T00:00:00+00:00",
            "level": "WARNING",
            "message": "refused\x1b[2J\nfrom a",
            "round": 3,
        }
    )
    assert line.endswith("round 3: WARNING: refused?[2J from a")


def test_a_run_without_a_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no log"):
        list(read_events(tmp_path))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ("--agent", "pi03"),
            2,
            r"error: no agent 'pi03' in the log of run 'r' \(.*/r/log.jsonl\); known: "
            r"pi3, tv\n",
        ),
        (("--agent", "pi03", "-f"), 2, "error: no agent 'pi03' in the log"),
        (
            ("--round", "7"),
            2,
            r"error: no round 7 in the log of run 'r' \(.*\); known: 1 to 2\n",
        ),
        (("--agent", "tv", "--round", "2"), 0, "run 'r': no event of agent 'tv' in round 2\n"),
    ],
)
def test_an_unknown_agent_or_round_is_an_error(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "r").mkdir()
    fields: dict[str, object] = {"run": "r", "round": 1}
    with logs.record_log(tmp_path / "r" / logs.EVENTS, fields):
        log.info("tv: folded", extra={"agent": "tv"})
        fields["round"] = 2
        log.info("pi3: folded", extra={"agent": "pi3"})
    done = CliRunner().invoke(main, ["log", "r", "--runs", str(tmp_path), *words])
    assert done.exit_code == code
    assert done.stdout == ""
    assert re.match(said, done.stderr)


def test_of_a_thousand_agents_the_nearest_are_named(tmp_path: Path) -> None:
    (tmp_path / logs.EVENTS).write_text(
        "".join(
            json.dumps({"time": "t", "message": "m", "agent": f"d{i}"}) + "\n" for i in range(1000)
        )
    )
    assert explain_missing(tmp_path, "d1000").endswith("and 990 more")
    assert "known: d100, " in explain_missing(tmp_path, "d1000")
