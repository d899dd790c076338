"""Record the result of one check, and format it as text or JSON. Does not import torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

import click

from federated.errors import EspalierError
from federated.runtime.console import show_progress
from federated.safe_text import make_safe

__all__ = [
    "Check",
    "State",
    "find_exit_code",
    "format_check",
    "format_json",
    "print_checks",
    "report_error",
]

State: TypeAlias = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """The result of one check.

    name: what was checked, one word.
    state: ok, warn or fail.
    found: what the check found.
    remedy: what the user can do; empty if nothing is wrong.
    exit: the exit code of the command if this check fails.
    """

    name: str
    state: State
    found: str
    remedy: str = ""
    exit: int = 1


def report_error(name: str, error: EspalierError) -> Check:
    """Return the failed check for an error, whose text is a problem, a colon and a remedy."""
    found, _, remedy = str(error).partition(": ")
    return Check(name, "fail", found, remedy, error.exit_code)


def find_exit_code(checks: Sequence[Check]) -> int:
    """Return the exit code of the first failed check, or 0 if none failed."""
    return next((check.exit for check in checks if check.state == "fail"), 0)


def format_check(check: Check) -> str:
    """Format a check as one line that is safe to show."""
    remedy = f": {check.remedy}" if check.remedy else ""
    return make_safe(f"{check.state:<4}  {check.name:<11}  {check.found}{remedy}", None)


def print_checks(checks: Iterable[Check], form: str) -> int:
    """Print each check as soon as it is made, or all as one line of JSON. Return the exit code."""
    made = list[Check]()
    with show_progress("checking"):
        for check in checks:
            made.append(check)
            if form == "text":
                click.echo(format_check(check))
    if form == "json":
        click.echo(format_json(made))
    return find_exit_code(made)


def format_json(checks: Sequence[Check]) -> str:
    """Format all checks as one line of JSON."""
    rows = [{"check": row.pop("name"), **row} for row in map(asdict, checks)]
    return json.dumps(
        {"fit": find_exit_code(checks) == 0, "exit": find_exit_code(checks), "checks": rows}
    )
