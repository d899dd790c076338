"""Describe in plain words why data in JSON or msgpack do not have the expected form."""

from __future__ import annotations

import re

import msgspec

__all__ = ["describe_decoding_error"]

TYPES = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "nothing",
    "object": "a table",
    "str": "text",
}


def describe_decoding_error(error: Exception) -> str:
    """Return where data differ, what was expected and what was found, such as
    "rows[0].p50_ms: expected a number or nothing, found text".

    error: what msgspec or the decoding of UTF-8 raised.
    """
    if not isinstance(error, msgspec.ValidationError):
        place = re.search(r"\(byte \d+\)", str(error))
        return f"found no valid JSON{f' {place[0]}' if place else ''}"
    what, _, path = str(error).replace("`", "").partition(" - at $")
    start = f"{path.lstrip('.')}: " if path else ""
    if missing := re.fullmatch(r"Object missing required field (.+)", what):
        return f"{start}expected a field '{missing[1]}', found none"
    words = re.sub(rf"\b({'|'.join(TYPES)})\b", lambda name: TYPES[name[0]], what)
    return f"{start}{words[:1].lower()}{words[1:]}".replace(", got ", ", found ").replace(
        " | ", " or "
    )
