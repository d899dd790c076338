"""The JSON Schema of a run's configuration, with the settings of each method as alternatives."""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.settings.config import METHOD, Config
from federated.method import Method
from federated.methods.catalogue import loaded_methods
from federated.settings import MethodSettings

__all__ = ["DIALECT", "schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


def schema() -> Schema:
    """The schema that `coordinator schema` prints, with the methods that are built in or installed.
    A method of `module:function` may have any settings here; `load` checks them, and what needs
    more than one value, such as a setting that is given both in `method` and in `train`.
    """
    methods = loaded_methods()
    records = [made.record for made in methods.values()]
    _, parts = msgspec.json.schema_components((Config, *records), ref_template="#/$defs/{name}")
    root = parts.pop("Config")
    for one in root["properties"].values():
        if "$ref" in one:
            del one["default"]  # each field of the table has its own
    root["properties"] |= {
        "method": {
            "description": "The method and its settings.",
            "type": "object",
            "properties": {
                "name": {"anyOf": [{"enum": list(methods)}, {"pattern": ":"}], "default": METHOD}
            },
        },
        "train": {"description": "How devices train: settings of the method.", "type": "object"},
    }
    root["description"] = "Everything that decides a run."
    alternatives = [alternative(name) for name in methods]
    known = {
        name: method_part(parts.pop(made.record.__name__), made) for name, made in methods.items()
    }
    return {"$schema": DIALECT, **root, "allOf": alternatives, "$defs": {**parts, **known}}


def method_part(part: Schema, made: Method) -> Schema:
    """The schema of a method's table: its settings, without what the run decides, and its name."""
    known = {
        key: one
        for key, one in part["properties"].items()
        if key not in MethodSettings.__struct_fields__
    }
    return {
        **part,
        "description": made.summary,
        "properties": {"name": {"const": made.name}, **known},
    }


def alternative(name: str) -> Schema:
    """What holds for the tables `method` and `train` of a configuration that names this method."""
    named: Schema = {"properties": {"method": {"properties": {"name": {"const": name}}}}}
    if name != METHOD:
        named["properties"]["method"]["required"] = ["name"]
        named["required"] = ["method"]
    part = {"$ref": f"#/$defs/{name}"}
    # the method's name belongs in `method` only
    train = {**part, "properties": {"name": False}}
    return {"if": named, "then": {"properties": {"method": part, "train": train}}}
