"""Text of another machine cannot change a terminal, table, log or error."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from io import StringIO
from pathlib import Path

import click
import pytest
from rich.console import Console

from coordinator.observe import events
from coordinator.observe.event_readers.terminal_output import LinePrinter, Screen, render_agents
from coordinator.observe.round_records import Entry, RoundRecord
from coordinator.round.round_state import Agent
from coordinator.views.agent_table import describe_agents
from coordinator.views.agent_table import render_agents as render_devices
from coordinator.views.run_log import format_event
from coordinator.views.run_status import render_members, render_table
from federated.errors import FleetError, Refused
from federated.runtime import logs
from federated.runtime.console import report_errors, speaker
from federated.safe_text import MAX_TEXT, make_lines_safe, make_safe
from federated.task import Board, Profile
from federated.wire import envelope, messages
from federated.wire.checks.check_result import Check, format_check
from tests.federated.wire.test_envelope import ALL
from tests.support.memory_federation import RUN, Member, digits, federate

WORDS = (
    "[/x] \x1b]0;PWNED\x07\x1b[2J\x1b[31mrm -rf\x1b[0m [bold]not bold[/bold] :boom:"
    "\x9b31m \u202egnp.exe\u2066 \u200b \ue000 \x00\x7f\r"
    "\n2026-01-01 00:00:00 INFO coordinator: all is well"
)


def is_safe(text: str) -> bool:
    return all(line.isprintable() for line in text.splitlines())


def test_unprintable_characters_are_replaced() -> None:
    assert make_safe("a\x1b[2J\u202eb\nc\u2066\x9b") == "a?[2J?b c??"
    assert make_safe("Müller's 树莓派 [red] 👍") == "Müller's 树莓派 [red] 👍"
    assert make_safe(WORDS).isprintable()
    assert len(make_safe("\x1b" * 5000)) == MAX_TEXT
    assert make_lines_safe("a\x07\nb") == "a?\nb"


def test_words_are_safe_once_a_message_is_decoded() -> None:
    board = Board("pi", WORDS, WORDS)
    made = replace(
        ALL["profile"],  # type: ignore[type-var]
        host=WORDS,
        board=board,
        labels=(WORDS[:100],),
        data=replace(ALL["profile"].data, name=WORDS),  # type: ignore[union-attr]
        survey={"kept": "as\tit\nis"},
    )
    found = envelope.decode(envelope.encode(made))
    assert isinstance(found, Profile)
    assert found.host == found.board.model == found.data.name == make_safe(WORDS)
    assert found.labels == (make_safe(WORDS[:100]),)
    assert found.survey == {"kept": "as\tit\nis"}, "only methods read it"
    beat = envelope.decode(envelope.encode(messages.Heartbeat("a", "s", "\x1b[2Jidle", 0)))
    assert isinstance(beat, messages.Heartbeat)
    assert beat.state == "?[2Jidle"


def test_words_in_errors_are_safe(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(Refused(WORDS)) == make_safe(WORDS)
    with pytest.raises(SystemExit) as end, report_errors("x", "y"):
        raise FleetError(f"first:\n  - {WORDS}")
    assert end.value.code == 6
    shown = capsys.readouterr().err
    assert is_safe(shown)
    assert shown.startswith("error: first:\n  - [/x] ?]0;PWNED")
    speaker("text")(WORDS)
    assert is_safe(capsys.readouterr().out)


@pytest.mark.parametrize("form", ["text", "json"])
def test_words_in_logs_are_safe(tmp_path: Path, form: logs.Form) -> None:
    handler = logging.FileHandler(tmp_path / "log")
    handler.setFormatter(logs._make_formatter(form))
    log = logging.Logger("test")
    log.addHandler(handler)
    log.warning("%s", WORDS, extra={"outcome": WORDS})
    handler.close()
    written = (tmp_path / "log").read_text()
    assert len(written.splitlines()) == 1
    assert is_safe(written)
    if form == "json":
        assert is_safe(json.loads(written)["outcome"])


def test_words_in_stored_events_are_safe() -> None:
    event = {"time": "2026-01-01T00:00:00+00:00", "level": "WARNING", "message": WORDS}
    shown = format_event(event)
    assert shown.isprintable()
    assert "[bold]not bold[/bold]" in shown


def test_words_in_a_diagnosis_are_safe() -> None:
    assert format_check(Check("run", "warn", WORDS, WORDS)).isprintable()


def test_words_on_the_live_screen_and_in_lines_are_safe() -> None:
    out = StringIO()
    agent = Agent(name="liar", session="s", online=True, state=WORDS)
    screen = Screen(lambda: [agent], "run")
    screen.read(events.RoundDelayed(WORDS))
    Console(file=out, width=200).print(screen.draw())
    assert is_safe(out.getvalue())
    assert "[bold]not bold[/bold]" in out.getvalue()
    Console(file=out, width=200).print(render_agents([("a", WORDS, "s", 1, 2)], ()))
    assert is_safe(out.getvalue())
    lines: list[str] = []
    printer = LinePrinter(lambda line: lines.append(make_lines_safe(line)))
    entry = Entry("liar", "w1", f"failed: {WORDS}")
    printer.read(events.RoundEnded(RoundRecord(1, 1.0, {}, {}, (entry,))))
    assert "[bold]not bold[/bold]" in lines[0]


def test_words_in_status_are_safe() -> None:
    member = {
        **{"agent": "liar", "submodel": WORDS, "state": "paused", "task": WORDS, "loss": None},
        "reason": WORDS,
    }
    shown = render_table(render_members([member]))
    assert is_safe(shown)
    assert "[bold]not bold[/bold]" in " ".join(shown.split())


def test_words_of_a_device_are_safe_in_the_table_of_devices(tmp_path: Path) -> None:
    federate(tmp_path, [Member("a0", digits(0, 2))], {"train.steps": 1, "model.name": "mlp-small"})
    made = describe_agents(RUN, tmp_path / "runs")
    device = made["agents"][0]
    device["profile"]["board"] |= {"kind": WORDS, "model": "[/x]"}
    device["profile"]["system"], device["reason"] = WORDS, WORDS
    device["profile"]["software"] = WORDS
    assert "[/x]" in render_devices(made)
    device["profile"]["board"]["model"] = WORDS
    shown = render_devices(made)
    assert is_safe(click.unstyle(shown))
