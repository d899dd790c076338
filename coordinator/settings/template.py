"""A configuration file with every setting, its default and its explanation, from the schema."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from coordinator.settings.config import METHOD, Config, table_of
from coordinator.settings.schema import schema
from federated.methods.catalogue import method

__all__ = ["template"]

WIDTH = 96
Schema = dict[str, Any]


def template(name: str = METHOD) -> str:
    """A TOML file that a run of this method can be started with, and that changes no default.
    Raises Unknown for a method that does not exist.
    """
    chosen, whole = method(name), schema()
    parts: dict[str, Schema] = whole["$defs"]
    lines = [
        *comment(f"A run of {chosen.name}: {chosen.summary}."),
        "# Every setting has its default; keep the lines that you change, and delete the others.",
    ]
    for key in Config.__struct_fields__:
        field = whole["properties"][key]
        if key in ("method", "train"):
            settings = own_settings(parts[chosen.name], key)
            lines += table(key, field["description"], settings)
        elif "$ref" in field:
            part = parts[field["$ref"].rpartition("/")[2]]
            lines += table(key, part["description"], part["properties"])
        else:
            lines += ["", *setting(key, field)]
    return "\n".join(lines) + "\n"


def own_settings(part: Schema, place: str) -> dict[str, Schema]:
    """The settings of a method that belong in the table `method` or `train`, its name first."""
    name = {**part["properties"]["name"], "default": part["properties"]["name"]["const"]}
    found = {"name": {**name, "description": "Name of the method."}} if place == "method" else {}
    return found | {
        key: one
        for key, one in part["properties"].items()
        if key != "name" and table_of(key) == place
    }


def table(key: str, description: str, fields: dict[str, Schema]) -> Iterator[str]:
    """The lines of a table, a blank line first."""
    yield ""
    yield from comment(description)
    yield f"[{key}]"
    for name, field in fields.items():
        yield from setting(name, field)


def setting(key: str, field: Schema) -> Iterator[str]:
    """The lines of one setting. One without a value is commented out, since TOML has no null."""
    choices = field.get("enum") or field.get("items", {}).get("enum")
    yield from comment(
        field["description"] + (f" One of: {', '.join(map(str, choices))}." if choices else "")
    )
    default = field["default"]
    # JSON is TOML for all of these: text, numbers, booleans, lists, and an empty table
    yield f"# {key} =" if default is None else f"{key} = {json.dumps(default)}"


def comment(text: str) -> list[str]:
    """The text as lines of comments."""
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")
