"""Write the documentation's tables of all settings of a run, from their JSON Schema, and of the
exit codes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.generated_docs.markdown_table import render_table
from coordinator.views.config_schema import build_schema
from federated.errors import EXIT_CODES

__all__ = ["list_exit_codes", "list_settings"]

OF_METHODS = ("method", "train")  # `coordinator methods NAME` lists their settings


def list_exit_codes() -> Iterator[str]:
    rows = ((str(code), meaning) for code, meaning in EXIT_CODES.items())
    return render_table(("exit code", "meaning"), rows)


def list_settings() -> Iterator[str]:
    """Yield one table per section of a configuration, the settings outside sections first."""
    schema = build_schema()
    sections = {
        name: schema["$defs"][one["$ref"].rpartition("/")[2]]
        for name, one in schema["properties"].items()
        if "$ref" in one
    }
    top = {
        name: one
        for name, one in schema["properties"].items()
        if name not in sections and name not in OF_METHODS
    }
    yield from list_section("", {"properties": top})
    for name, section in sections.items():
        yield ""
        yield f"## [{name}]"
        yield ""
        if about := section.get("description"):
            yield about
            yield ""
        yield from list_section(f"{name}.", section)


def list_section(prefix: str, section: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of one section."""
    rows = (
        (
            f"`{prefix}{name}`",
            f"`{json.dumps(one['default'])}`" if "default" in one else "",
            describe_values(one),
            one.get("description", "").replace("|", "\\|"),
        )
        for name, one in section["properties"].items()
    )
    return render_table(("setting", "default", "values", "meaning"), rows)


def describe_values(one: Mapping[str, Any]) -> str:
    """Return the values that a setting accepts: their names, or their type and bounds."""
    if "enum" in one:
        return ", ".join(f"`{json.dumps(value)}`" for value in one["enum"])
    if "anyOf" in one:
        return " or ".join(dict.fromkeys(map(describe_values, one["anyOf"])))
    low, high = one.get("minimum"), one.get("maximum")
    above, below = one.get("exclusiveMinimum"), one.get("exclusiveMaximum")
    bounds = [
        f"{word} {value:.15g}"
        for word, value in (("from", low), ("above", above), ("to", high), ("below", below))
        if value is not None and abs(value) < 2**31
    ]
    return " ".join([str(one.get("type", "any")), *bounds])
