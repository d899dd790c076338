"""`edge-agent doctor`: is this device fit to take part? Each check is one line: how it stands, what
was tried, what was found, and what to do.

Nothing is joined: the coordinator is at most asked to say something back. No torch at import.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

__all__ = ["Check", "State", "as_json", "examine", "exit_code", "text"]

State: TypeAlias = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One thing that was tried. remedy: empty where nothing is amiss. exit: the exit code that a
    failure of this kind has.
    """

    name: str
    state: State
    found: str
    remedy: str = ""
    exit: int = 1


def examine(broker: str | None, run: str | None, name: str, store: Path) -> Iterable[Check]:
    """All checks, as they are done. broker: None leaves out the way to it. Raises UsageError for an
    address or a name that is none.
    """
    from edge_agent.doctor.connection_checks import wire
    from edge_agent.doctor.device_checks import device
    from federated.wire import messages

    card: messages.Run | None = None
    if broker is not None:
        for found in wire(broker, run, name):
            if isinstance(found, messages.Run):
                card = found
            else:
                yield found
    yield from device(store, card)


def exit_code(checks: Sequence[Check]) -> int:
    """0, or that of the first failure."""
    return next((check.exit for check in checks if check.state == "fail"), 0)


def text(check: Check) -> str:
    """One line: others' words in it move no cursor."""
    said = f"{check.state:<4}  {check.name:<11}  {check.found}" + (
        f": {check.remedy}" if check.remedy else ""
    )
    return "".join(c if c.isprintable() else " " for c in said)


def as_json(checks: Sequence[Check]) -> str:
    """One line."""
    rows = [{"check": row.pop("name"), **row} for row in map(asdict, checks)]
    return json.dumps({"fit": exit_code(checks) == 0, "exit": exit_code(checks), "checks": rows})
