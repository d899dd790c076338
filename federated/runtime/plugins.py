"""Extensions by name, with the project's errors: methods, robust rules, codecs, ..."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from federated.errors import ConfigError, Unknown
from models.extensions import Kind, lookup

__all__ = ["find"]

T = TypeVar("T")


def find(kind: Kind, name: str, known: Mapping[str, T]) -> T:
    """The member of a name that the owner of this machine wrote; see `models.extensions.lookup`.

    known: the built-in members. Raises Unknown, nearest names first; ConfigError for one that
    cannot be imported, or is no member.
    """
    try:
        return lookup(kind, name, known)
    except LookupError as error:
        raise Unknown(kind.noun, *error.args) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
