"""Generate the JSON Schema of a run's configuration, with the settings of each method as
alternatives, and a template of a configuration file that explains every setting.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from coordinator.observe.event_readers.catalogue import list_optional
from coordinator.settings.config import Config, find_table
from federated.data.catalogue import DATASETS
from federated.defaults import METHOD
from federated.device.trainers.catalogue import TRAINERS
from federated.engine.robust.catalogue import RULES
from federated.method import Method
from federated.methods.catalogue import find_method, list_loaded_methods
from federated.settings_validation import Settings
from federated.wire.codecs.catalogue import CODECS
from federated.wire.links.catalogue import LINKS
from models.families.catalogue import FAMILIES

__all__ = ["build_schema", "render_template"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
WIDTH = 96  # columns of a template
Schema = dict[str, Any]
# setting -> names of the built-in members that it takes
BUILT_IN: Mapping[str, Iterable[str]] = {
    "broker.url": [f"{scheme}://" for scheme in LINKS],
    "data.name": DATASETS,
    "model.name": FAMILIES,
    "observe.readers": list_optional(),
    "robust.rule": ("none", *RULES),
    "simulate.trainer": TRAINERS,
    "wire.codec": CODECS,
    "wire.slow_codec": CODECS,
}


def build_schema() -> Schema:
    """Return the schema that `coordinator schema` prints, with all built-in and installed methods.

    It accepts any settings of a `module:function` method. `load` checks those, and rules about
    several values, such as a setting that is given both in `method` and in `train`.
    """
    methods = list_loaded_methods()
    records = [method.record for method in methods.values()]
    _, parts = msgspec.json.schema_components((Config, *records), ref_template="#/$defs/{name}")
    root = parts.pop("Config")
    for setting, names in BUILT_IN.items():
        table, _, key = setting.partition(".")
        add_names(parts[table.title()], key, names)
    for field in root["properties"].values():
        if "$ref" in field:
            del field["default"]  # each field of the table has its own
    root["properties"] |= {
        "method": {
            "description": "The method and its settings.",
            "type": "object",
            "properties": {
                "name": {"anyOf": [{"enum": list(methods)}, {"pattern": ":"}], "default": METHOD}
            },
        },
        "train": {
            "description": "The method's settings for training on devices.",
            "type": "object",
        },
    }
    root["description"] = "The configuration of a run."
    alternatives = [build_alternative(name) for name in methods]
    known = {
        name: describe_method(parts.pop(made.record.__name__), made)
        for name, made in methods.items()
    }
    return {"$schema": DIALECT, **root, "allOf": alternatives, "$defs": {**parts, **known}}


def add_names(part: Schema, key: str, names: Iterable[str]) -> None:
    """Add the names of a catalogue's members to the description of a setting that takes them."""
    field = part["properties"][key]
    field["description"] += f" Built in: {', '.join(names)}."


def describe_method(part: Schema, made: Method) -> Schema:
    """Return the schema of a method's settings and name, without those that the run decides."""
    settings = {
        key: field
        for key, field in part["properties"].items()
        if key not in Settings.__struct_fields__
    }
    properties = {"name": {"const": made.name}, **settings}
    return {**part, "description": made.summary, "properties": properties}


def build_alternative(name: str) -> Schema:
    """Return the rule for the tables `method` and `train` of a configuration with this method."""
    named: Schema = {"properties": {"method": {"properties": {"name": {"const": name}}}}}
    if name != METHOD:
        named["properties"]["method"]["required"] = ["name"]
        named["required"] = ["method"]
    part = {"$ref": f"#/$defs/{name}"}
    # the method's name belongs in `method` only
    train = {**part, "properties": {"name": False}}
    return {"if": named, "then": {"properties": {"method": part, "train": train}}}


def render_template(name: str = METHOD) -> str:
    """Return a TOML file that starts a run of this method with all defaults. Raises Unknown for an
    unknown method.
    """
    chosen, whole = find_method(name), build_schema()
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
