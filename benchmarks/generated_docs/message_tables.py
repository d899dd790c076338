"""Write the documentation's tables of the protocol: messages, the records inside them, names, and
capabilities.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
from msgspec import inspect

from benchmarks.generated_docs.markdown_table import render_table
from federated.task import Update
from federated.trainer_capabilities import CAPABILITIES, GRAPHS, name_hook
from federated.wire import field_types
from federated.wire.envelope import MESSAGES

__all__ = ["list_capabilities", "list_messages", "list_names"]

HEADS = "field", "type", "default", "meaning"
FIELD = re.compile(r"^ {4}([a-z_][\w, ]*): (.*(?:\n {8}.*)*)", re.MULTILINE)
INLINE = re.compile(r"(?:^|\. )([a-z_][\w, ]*): ([^.]+)\.")
SIMPLE = {
    inspect.BoolType: "boolean",
    inspect.NoneType: "nil",
    inspect.AnyType: "any",
}
NAMES = {
    "name": field_types.Name,
    "agent name": field_types.AgentName,
    "submodel name": field_types.SubmodelName,
    "transfer name": field_types.Transfer,
    "version name": field_types.VersionName,
    "program version": field_types.ProgramVersion,
    "software name": field_types.SoftwareName,
    "digest": field_types.Digest,
}
PATTERNS = {get_args(found)[1].pattern: word for word, found in NAMES.items()}
EMPTY = r"^\Z|"  # start of the pattern of a name that may be empty
NATURAL = 0, 1 << 62  # bounds of `fields.Natural`


def list_names() -> Iterator[str]:
    rows = ((word, f"`{escape(pattern)}`") for pattern, word in PATTERNS.items())
    return render_table(("type", "pattern"), rows)


def list_capabilities() -> Iterator[str]:
    known = {
        **CAPABILITIES,
        GRAPHS: "work with the graphs that tasks name, without code of the networks",
        name_hook("METHOD"): "code of this method that runs on devices; with `graphs`, a loss of "
        "exits needs none",
    }
    return render_table(("capability", "meaning"), ((f"`{k}`", v) for k, v in known.items()))


def list_messages() -> Iterator[str]:
    """Yield a heading, a description and a table of fields for each message, for the header of an
    update, and for each record that is a field of one.
    """
    records: dict[str, type] = {f"`{kind}`": found for kind, found in MESSAGES.items()}
    records["Update"] = Update
    inner = dict[str, type]()
    for record in records.values():
        inner |= find_records(inspect.type_info(record))
    names = {one.__name__: one for one in inner.values() if one not in records.values()}
    for title, record in (*records.items(), *sorted(names.items())):
        about, field_types = split_docstring(record)
        yield f"### {title}"
        yield ""
        yield about
        yield ""
        yield from render_table(
            ("field", "type", "default", "meaning"), list_fields(record, field_types)
        )
        yield ""


def find_records(one: inspect.Type) -> dict[str, type]:
    """Return the record types inside a type, by name."""
    if isinstance(one, inspect.DataclassType | inspect.StructType):
        found = {one.cls.__name__: one.cls}
        for field in one.fields:
            found |= find_records(field.type)
        return found
    single = (getattr(one, name, None) for name in ("item_type", "key_type", "value_type"))
    parts = (*getattr(one, "types", ()), *getattr(one, "item_types", ()), *filter(None, single))
    found = {}
    for part in parts:
        found |= find_records(part)
    return found


def split_docstring(record: type) -> tuple[str, dict[str, str]]:
    """Return a record's description, and that of each of its fields."""
    about, _, rest = (record.__doc__ or "").partition("\n\n")
    field_types = dict[str, str]()
    for names, text in (*INLINE.findall(about), *FIELD.findall(rest)):
        for name in names.split(", "):
            field_types[name] = tidy(text)
    return tidy(about), field_types


def tidy(text: str) -> str:
    """Return a text on one line, fit for a cell, in the words of msgpack."""
    return re.sub(r"\bNone\b", "nil", " ".join(text.split())).replace("|", "\\|")


def list_fields(record: type, known: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a record's table."""
    found = inspect.type_info(record)
    assert isinstance(found, inspect.DataclassType | inspect.StructType), "messages are records"
    for field in found.fields:
        yield (
            f"`{field.encode_name}`",
            describe_type(field.type),
            "" if field.required else f"`{describe_default(field)}`",
            known.get(field.name, ""),
        )


def describe_default(field: inspect.Field) -> str:
    """Return a field's default as JSON, except nil and NaN."""
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.json.encode(field.default_factory()).decode()
    default = field.default
    if dataclasses.is_dataclass(default) or isinstance(default, msgspec.Struct):
        return type(default).__name__
    if isinstance(default, float) and math.isnan(default):
        return "NaN"
    return "nil" if default is None else msgspec.json.encode(default).decode()


def describe_type(one: inspect.Type) -> str:
    """Return a type in the words of msgpack, with its limits."""
    if simple := SIMPLE.get(type(one)):
        return simple
    match one:
        case inspect.StrType():
            return describe_text(one)
        case inspect.BytesType() | inspect.MemoryViewType():
            return f"binary{describe_length(one)}"
        case inspect.IntType(ge=low, lt=high) if (low, high) == NATURAL:
            return "natural"
        case inspect.IntType() | inspect.FloatType():
            noun = "integer" if isinstance(one, inspect.IntType) else "float"
            return f"{noun}{describe_bounds(one)}"
        case inspect.LiteralType():
            return "one of " + ", ".join(f"`{value}`" if value else '`""`' for value in one.values)
        case inspect.UnionType():
            return " or ".join(describe_type(part) for part in one.types)
        case inspect.DictType():
            inner = f"{describe_type(one.key_type)} to {describe_type(one.value_type)}"
            return f"map of {inner}{describe_length(one)}"
        case inspect.VarTupleType() | inspect.ListType() | inspect.SetType():
            return f"array of {describe_type(one.item_type)}{describe_length(one)}"
        case inspect.TupleType():
            return f"array of {', '.join(describe_type(part) for part in one.item_types)}"
        case inspect.DataclassType() | inspect.StructType():
            return f"[{one.cls.__name__}](#{one.cls.__name__.lower()})"
    return type(one).__name__.removesuffix("Type").lower()


def describe_text(one: inspect.StrType) -> str:
    """Return the name of a pattern, or the limit of a length."""
    if not one.pattern:
        return f"string{describe_length(one)}"
    word = PATTERNS[one.pattern.removeprefix(EMPTY)]
    return f"{word} or empty" if one.pattern.startswith(EMPTY) else word


def escape(pattern: str) -> str:
    """Return a pattern that does not end a cell of the table."""
    return pattern.replace("|", "\\|")


def describe_length(one: Any) -> str:
    """Return the limits of a length."""
    low, high = one.min_length, one.max_length
    words = [f"at least {low}" if low else "", f"at most {high:,}" if high is not None else ""]
    return f" ({', '.join(filter(None, words))})" if any(words) else ""


def describe_bounds(one: inspect.IntType | inspect.FloatType) -> str:
    """Return the limits of a number."""
    signs = (("≥", one.ge), (">", one.gt), ("≤", one.le), ("<", one.lt))
    words = [
        f"{sign} {value:,}" for sign, value in signs if value is not None and abs(value) < 1e300
    ]
    return f" {', '.join(words)}" if words else ""
