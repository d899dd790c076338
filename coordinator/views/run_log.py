"""What `coordinator log` prints: the events of a run, from the JSON lines that its coordinators
left in its folder.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, BinaryIO

from federated.errors import StoreError
from federated.runtime.logs import EVENTS

__all__ = ["Only", "about", "follow", "lately", "missed", "past", "told"]

LOOK = 0.5  # seconds between looks at a log that is followed
TAIL = 256 << 10  # bytes of the end of a log in which the last errors are looked for
SHOWN = 10  # agents that are named where another one was asked for

Only = Callable[[dict[str, Any]], bool]
"""Which events are wanted."""


def past(folder: Path, only: Only = lambda event: True) -> Iterator[dict[str, Any]]:
    """The events that are kept, oldest first. Lines that are no event, such as one that a full disk
    cut, are passed over.

    Raises StoreError where the run left none.
    """
    return follow(folder, only, until=lambda: True)


def follow(
    folder: Path,
    only: Only,
    wait: Callable[[float], None] = time.sleep,
    until: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, Any]]:
    """The events that are kept, then those that come, through rotations, until `until`. Raises
    StoreError where there are none.
    """
    if not (folder / EVENTS).exists():
        raise StoreError(f"run '{folder.name}' has no log in {folder}")
    for file in sorted(folder.glob(f"{EVENTS}.*"), key=lambda path: path.suffix, reverse=True):
        with opened(file) as stream:
            yield from filter(only, events(stream))
    file, stream = folder / EVENTS, opened(folder / EVENTS)
    try:
        while True:
            # asked first: then nothing more comes into what is read now
            ended, moved = until(), rotated(stream.fileno(), file)
            yield from filter(only, events(stream))
            if moved and file.exists():
                stream.close()
                stream = opened(file)
            elif ended:
                return
            else:
                wait(LOOK)
    finally:
        stream.close()


def about(agent: str | None = None, number: int | None = None) -> Only:
    """The events of an agent, of a round, of both; None: of any."""
    return lambda event: (
        (agent is None or event.get("agent") == agent)
        and (number is None or event.get("round") == number)
    )


def missed(folder: Path, agent: str | None = None, number: int | None = None) -> str:
    """What is asked for and in no event that is kept, with what there is, nearest first; empty
    where there are events of each.
    """
    if agent is None and number is None:
        return ""
    agents, rounds = set[str](), set[int]()
    for event in past(folder):
        if isinstance(name := event.get("agent"), str):
            agents.add(name)
        if isinstance(of := event.get("round"), int):
            rounds.add(of)
    here = f"in the log of run '{folder.name}' ({folder / EVENTS})"
    if agent is not None and agent not in agents:
        known = sorted(agents, key=lambda name: (-SequenceMatcher(None, agent, name).ratio(), name))
        more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
        return f"no agent '{agent}' {here}; there are: {', '.join(known[:SHOWN]) or 'none'}{more}"
    if number is not None and number not in rounds:
        return (
            f"no round {number} {here}; there are: "
            f"{f'{min(rounds)} to {max(rounds)}' if rounds else 'none'}"
        )
    return ""


def lately(folder: Path, count: int) -> list[dict[str, Any]]:
    """The last warnings and errors of a run, the latest last; none where it has no log."""
    try:
        with (folder / EVENTS).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    found = [
        event
        for line in lines
        if (event := parsed(line)) and event.get("level") in ("WARNING", "ERROR", "CRITICAL")
    ]
    return found[-count:]


def told(event: dict[str, Any]) -> str:
    """An event as one line for a person, in this machine's time."""
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
    # others' words: nothing moves the cursor
    return "".join(
        c if c.isprintable() else " " for c in f"{when}  {number}{level}{event['message']}"
    )


def events(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    """Those that are whole; the rest of a line that is being written is left for the next time."""
    while True:
        start, line = stream.tell(), stream.readline()
        if not line.endswith(b"\n"):
            stream.seek(start)
            return
        if event := parsed(line):
            yield event


def parsed(line: str | bytes) -> dict[str, Any] | None:
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


def opened(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from error


def rotated(handle: int, file: Path) -> bool:
    """Whether the file of that name is another one by now."""
    try:
        return os.fstat(handle).st_ino != file.stat().st_ino
    except FileNotFoundError:
        return True
