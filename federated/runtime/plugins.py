"""Extensions by name, with the project's errors: robust rules, codecs, ..."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from federated.errors import ConfigError, Unknown
from models.extensions import Kind, lookup

__all__ = ["find", "unknown"]

T = TypeVar("T")


def find(kind: Kind, name: str, known: Mapping[str, T]) -> T:
    """The member of a name that the owner of this machine wrote; see `models.extensions.lookup`.

    known: the built-in members. Raises Unknown, nearest names first; ConfigError for one that
    cannot be imported, or is no member.
    """
    try:
        return lookup(kind, name, known)
    except LookupError as error:
        raise unknown(kind, error) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error


def unknown(kind: Kind, error: LookupError) -> Unknown:
    """The project's error for a name that `models` does not know."""
    name, known = error.args
    return Unknown(kind.noun, name, known, f"name one of your own as {kind.own}")
