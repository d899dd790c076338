"""Extensions by name, with the project's errors: robust rules, codecs, ..."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeVar

from federated.errors import ConfigError, Unknown
from models.extensions import Kind, known_names, lookup

__all__ = ["find", "installed"]

log = logging.getLogger(__name__)

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


def installed(kind: Kind, known: Mapping[str, T]) -> dict[str, T]:
    """All members by name: the built-in ones first, then those of installed packages.

    Names from messages can be looked up in it, since it is loaded whatever they are. What cannot be
    loaded is left out, with a warning.
    """
    found = {}
    for name in known_names(kind, known):
        try:
            found[name] = lookup(kind, name, known)
        except ValueError as error:
            log.warning("left out: %s", error)
    return found
