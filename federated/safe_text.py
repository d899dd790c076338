"""Make text of other machines safe to show in terminals, logs, tables and errors."""

from __future__ import annotations

__all__ = ["MAX_TEXT", "make_lines_safe", "make_safe"]

MAX_TEXT = 1000  # characters of a text that one peer sends and another shows


def make_safe(text: str, longest: int | None = MAX_TEXT) -> str:
    """Return the text as one line that a terminal shows as it is.

    White space becomes a space. Other characters that cannot be printed, such as those of escape
    sequences and those that change the direction of writing, become question marks. A text longer
    than `longest` is cut and ends with dots.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)
    return text if longest is None or len(text) <= longest else text[: longest - 3] + "..."


def make_lines_safe(text: str) -> str:
    """Return a text of any length whose lines are safe, as `make_safe` makes them."""
    return "\n".join(make_safe(line, None) for line in text.split("\n"))
