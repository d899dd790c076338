"""Template of a configuration file: every setting, its default and its explanation."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from coordinator.settings.config import METHOD, Config, find_table
from coordinator.settings.schema import build_schema
from federated.methods.catalogue import method

__all__ = ["render_template"]

WIDTH = 96
Schema = dict[str, Any]


def render_template(name: str = METHOD) -> str:
    """Return a TOML file that starts a run of this method with all defaults. Raises Unknown for an
    unknown method.
    """
    chosen, whole = method(name), build_schema()
    parts: dict[str, Schema] = whole["$defs"]
    lines = [
        *render_comment(f"A run of {chosen.name}: {chosen.summary}."),
        "# Every setting has its default. Keep the lines that you change and delete the others.",
    ]
    for key in Config.__struct_fields__:
        field = whole["properties"][key]
        if key in ("method", "train"):
            settings = select_settings(parts[chosen.name], key)
            lines += render_table(key, field["description"], settings)
        elif "$ref" in field:
            part = parts[field["$ref"].rpartition("/")[2]]
            lines += render_table(key, part["description"], part["properties"])
        else:
            lines += ["", *render_setting(key, field)]
    return "\n".join(lines) + "\n"


def select_settings(part: Schema, place: str) -> dict[str, Schema]:
    """Return the settings of a method in the table `method` (its name first) or `train`."""
    fields = dict(part["properties"])
    name = fields.pop("name")
    name |= {"default": name["const"], "description": "Name of the method."}
    settings = {key: field for key, field in fields.items() if find_table(key) == place}
    return {"name": name} | settings if place == "method" else settings


def render_table(key: str, description: str, fields: dict[str, Schema]) -> Iterator[str]:
    """Yield the lines of a table, after a blank line."""
    yield ""
    yield from render_comment(description)
    yield f"[{key}]"
    for name, field in fields.items():
        yield from render_setting(name, field)


def render_setting(key: str, field: Schema) -> Iterator[str]:
    """Yield the lines of a setting. One without a default is commented out: TOML has no null."""
    choices = field.get("enum") or field.get("items", {}).get("enum")
    text = field["description"]
    yield from render_comment(
        text[:1].upper()
        + text[1:]
        + (f" One of: {', '.join(map(str, choices))}." if choices else "")
    )
    default = field["default"]
    # JSON is TOML for all of these: text, numbers, booleans, lists, and an empty table
    yield f"# {key} =" if default is None else f"{key} = {json.dumps(default)}"


def render_comment(text: str) -> list[str]:
    """Return a text as lines of comments."""
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")
