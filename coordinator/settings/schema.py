"""JSON Schema of a run's configuration, with the settings of each method as alternatives."""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.settings.config import METHOD, Config
from federated.method import Method
from federated.methods.catalogue import loaded_methods
from federated.settings import Settings

__all__ = ["DIALECT", "build_schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


def build_schema() -> Schema:
    """Return the schema that `coordinator schema` prints, with all built-in and installed methods.

    It accepts any settings of a `module:function` method. `load` checks those, and rules about
    several values, such as a setting that is given both in `method` and in `train`.
    """
    methods = loaded_methods()
    records = [method.record for method in methods.values()]
    _, parts = msgspec.json.schema_components((Config, *records), ref_template="#/$defs/{name}")
    root = parts.pop("Config")
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
