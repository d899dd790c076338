"""Read, filter and format the events of a run for `coordinator log`, from the JSON lines in its
folder.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from federated.errors import StoreError, explain_os_errors
from federated.runtime.console import speaker
from federated.runtime.logs import EVENTS
from federated.safe_text import make_safe

__all__ = [
    "explain_missing",
    "follow_events",
    "format_event",
    "list_log_files",
    "match_events",
    "read_events",
    "read_lines",
    "read_recent_errors",
    "read_recent_events",
]

POLL = 0.5  # seconds between two reads of a log that is followed
TAIL = 256 << 10  # bytes at the end of a log that hold its recent events
MAX_NAMED = 10  # agents that an error names

Only = Callable[[dict[str, Any]], bool]
"""A function that returns True for an event to show."""


def read_events(folder: Path, only: Only = lambda event: True) -> Iterator[dict[str, Any]]:
    """Yield the stored events, oldest first. A damaged line, such as one that a full disk cut
    short, is reported on standard error and skipped. Raises StoreError if the run has no log.
    """
    return follow_events(folder, only, until=lambda: True)


def follow_events(
    folder: Path,
    only: Only,
    wait: Callable[[float], None] = time.sleep,
    until: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, Any]]:
    """Yield the stored events, then new ones, across rotations, until `until()` is true. Damaged
    lines are reported and skipped. Raises StoreError if the run has no log.
    """
    if not (folder / EVENTS).exists():
        raise StoreError(f"run '{folder.name}' has no log in {folder}")
    *older, file = list_log_files(folder)
    for one in older:
        with open_log(one) as stream:
            yield from filter(only, read_lines(stream))
    stream = open_log(file)
    try:
        while True:
            # before the read: otherwise events written between the two would be missed
            ended, moved = until(), is_rotated(stream.fileno(), file)
            yield from filter(only, read_lines(stream))
            if moved and file.exists():
                stream.close()
                stream = open_log(file)
            elif ended:
                return
            else:
                wait(POLL)
    finally:
        stream.close()


def list_log_files(folder: Path) -> list[Path]:
    """Return the files of a run's log, oldest first; the last one may be missing."""
    older = folder.glob(f"{EVENTS}.*")
    return [*sorted(older, key=lambda path: path.suffix, reverse=True), folder / EVENTS]


def match_events(agent: str | None = None, number: int | None = None) -> Only:
    """Return a function that matches the events of an agent and a round; None: of any."""
    return lambda event: (
        (agent is None or event.get("agent") == agent)
        and (number is None or event.get("round") == number)
    )


def explain_missing(folder: Path, agent: str | None = None, number: int | None = None) -> str:
    """Return why no event matches the agent or the round, with the known ones, the nearest names
    first; empty if there are events of each.
    """
    if agent is None and number is None:
        return ""
    agents, rounds = set[str](), set[int]()
    for event in read_events(folder):
        if isinstance(name := event.get("agent"), str):
            agents.add(name)
        if isinstance(in_round := event.get("round"), int):
            rounds.add(in_round)
    here = f"in the log of run '{folder.name}' ({folder / EVENTS})"
    if agent is not None and agent not in agents:
        near = sorted(agents, key=lambda name: (-SequenceMatcher(None, agent, name).ratio(), name))
        more = f" and {len(near) - MAX_NAMED} more" if len(near) > MAX_NAMED else ""
        return f"no agent '{agent}' {here}; known: {', '.join(near[:MAX_NAMED]) or 'none'}{more}"
    if number is not None and number not in rounds:
        known = f"{min(rounds)} to {max(rounds)}" if rounds else "none"
        return f"no round {number} {here}; known: {known}"
    return ""


def read_recent_events(folder: Path) -> list[dict[str, Any]]:
    """Return the events at the end of a run's log, the latest last; none without a log. Damaged
    lines are reported and skipped.
    """
    try:
        with (folder / EVENTS).open("rb") as file:
            if file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL)):
                file.readline()  # the seek may lead into the middle of a line
            return list(read_lines(file))
    except OSError:
        return []


def read_recent_errors(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return the last warnings and errors of a run, the latest last; none without a log."""
    levels = ("WARNING", "ERROR", "CRITICAL")
    return [event for event in read_recent_events(folder) if event.get("level") in levels][-count:]


def format_event(event: dict[str, Any]) -> str:
    """Return an event as one line of text, in local time."""
    try:
        when = datetime.fromisoformat(event["time"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        when = event["time"][:19]
    level = "" if event.get("level") == "INFO" else f"{event.get('level')}: "
    number = (
        f"round {event['round']}: "
        if event.get("round") and f"round {event['round']} " not in event["message"]
        else ""
    )
    return make_safe(f"{when}  {number}{level}{event['message']}", None)


def read_lines(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield the complete events from here on; an unfinished last line is left for the next call.
    Report damaged lines.
    """
    while True:
        start, line = stream.tell(), stream.readline()
        if not line.endswith(b"\n"):
            stream.seek(start)
            return
        if event := parse_event(line):
            yield event
        else:
            report_damage(stream.name, start)


@cache  # each line once, also if a command reads the log repeatedly
def report_damage(file: str, start: int) -> None:
    """Report the damaged line of a log that starts at this byte."""
    with open_log(Path(file)) as stream:
        number = stream.read(start).count(b"\n") + 1
    speaker("json")(
        f"warning: {file}, line {number}: expected an event as JSON; this line is skipped"
    )


def parse_event(line: str | bytes) -> dict[str, Any] | None:
    """Return the event that a line contains; None if the line is damaged."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return (
        event
        if isinstance(event, dict)
        and isinstance(event.get("message"), str)
        and isinstance(event.get("time"), str)
        else None
    )


def open_log(file: Path) -> BinaryIO:
    with explain_os_errors(StoreError, str(file)):
        return file.open("rb")


def is_rotated(handle: int, file: Path) -> bool:
    """Return True if another file replaced the opened one."""
    try:
        return os.fstat(handle).st_ino != file.stat().st_ino
    except FileNotFoundError:
        return True
