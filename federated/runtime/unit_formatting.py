"""Format counts, seconds and bytes for display."""

from __future__ import annotations

__all__ = ["format_count", "human_bytes", "human_joules", "human_seconds", "megabytes"]


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 round`, `2 rounds`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def human_seconds(seconds: float) -> str:
    return (
        f"{seconds * 1000:.3g} ms"
        if seconds < 1
        else f"{seconds:.3g} s"
        if seconds < 1000
        else f"{seconds:.0f} s"
    )


def megabytes(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.3g} GB"


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def human_joules(joules: float) -> str:
    for unit in ("J", "kJ", "MJ", "GJ"):
        if joules < 999.5 or unit == "GJ":
            return f"{joules:.3g} {unit}"
        joules /= 1000
    raise AssertionError
