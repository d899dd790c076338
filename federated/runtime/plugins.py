"""Lookup of extensions by name (robust rules, codecs, ...), with the project's errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from federated.errors import ConfigError, Unknown
from models.extensions import Kind, lookup

__all__ = ["find", "unknown"]

T = TypeVar("T")


def find(kind: Kind, name: str, known: Mapping[str, T]) -> T:
    """Return the extension that the owner of this machine named; see `models.extensions.lookup`.

    known: the built-in ones. Raises Unknown, with the nearest name; ConfigError for one that cannot
    be imported or is not of this kind.
    """
    try:
        return lookup(kind, name, known)
    except LookupError as error:
        raise unknown(kind, error) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error


def unknown(kind: Kind, error: LookupError) -> Unknown:
    """Return the project's error for an unknown name."""
    name, known = error.args
    return Unknown(kind.noun, name, known, f"name one of your own as {kind.own}")
