"""Give names to objects that a Python program passed instead of a name: networks, data sets,
methods.

A run names what it uses, so each such object gets a name of the form `models.given_objects:LABEL`,
which `models.extension_lookup` imports like every other `module:attribute`. The names hold in this
process, and in processes that were sent `OBJECTS`.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable
from types import CodeType
from typing import Any

__all__ = [
    "OBJECTS",
    "describe_name",
    "digest",
    "give",
    "give_function",
    "is_given",
    "is_missing",
    "replace_given",
    "spell_code",
    "strip_module",
]

OBJECTS: dict[str, Any] = {}  # by label


def give(label: str, value: Any) -> str:
    """Register an object under a label, and return its name."""
    OBJECTS[label] = value
    return f"{__name__}:{label}"


def is_given(name: str) -> bool:
    """Return True if a name has the form of those that `give` returns."""
    return name.startswith(f"{__name__}:")


def is_missing(name: str) -> bool:
    """Return True if a name is that of an object that was passed to another process only."""
    return is_given(name) and strip_module(name) not in OBJECTS


def strip_module(name: str) -> str:
    """Return the label of a name that `give` returned, and any other name as it is."""
    return name.partition(":")[2] if is_given(name) else name


def describe_name(name: str) -> str:
    """Return a name as messages show it: of an object that a program passed, the name of its class
    or function, without the module and the digests.
    """
    return re.sub(r"(_[0-9a-f]{8})+\Z", "", strip_module(name)) if is_given(name) else name


def replace_given(name: str, value: Any) -> None:
    """Register an object under a name that `give` returned, perhaps in another process."""
    OBJECTS[strip_module(name)] = value


def give_function(function: Callable[..., Any]) -> str:
    """Return the `module:function` name of a function. Register one that cannot be imported, such
    as one of a notebook, under a name that is made of its code.
    """
    module, name = function.__module__, getattr(function, "__qualname__", "")
    known = module != "__main__" and getattr(importlib.import_module(module), name, None)
    if known is function:
        return f"{module}:{name}"
    code = getattr(function, "__code__", None)
    text = spell_code(code) if code else type(function).__qualname__
    label = name.rpartition(".")[2].strip("<>") or type(function).__name__
    return give(f"{label}_{digest(text.encode())}", function)


def spell_code(code: CodeType) -> str:
    """Return the compiled code of a function as text, without its place in its file."""
    values = [one for one in code.co_consts if not isinstance(one, CodeType)]
    inner = [spell_code(one) for one in code.co_consts if isinstance(one, CodeType)]
    return f"{code.co_code.hex()} {code.co_names} {values} {inner}"


def digest(data: bytes) -> str:
    """Return a short digest."""
    return hashlib.sha256(data).hexdigest()[:8]


def __getattr__(label: str) -> Any:
    if label not in OBJECTS:
        raise AttributeError(
            f"no object '{label}' in this process: it was passed to a Python program; pass it again"
        )
    return OBJECTS[label]
