"""Look up an extension (a robust rule, a codec, ...) and call it, and turn its failures into the
project's errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from federated.errors import ConfigError, EspalierError, Unknown, add_article
from models.extension_lookup import ExtensionPoint, locate_failure, lookup
from models.given_objects import describe_name

__all__ = ["check_declares", "check_parameters", "explain_lookup", "find", "report_failure"]

T = TypeVar("T")


def find(point: ExtensionPoint, name: str, known: Mapping[str, T]) -> T:
    """Return the extension that this machine's owner named; see `models.extension_lookup.lookup`.

    known: the built-in ones. Raises Unknown, with the nearest name; ConfigError for one that cannot
    be imported or has the wrong type.
    """
    with explain_lookup(point):
        return lookup(point, name, known)


@contextmanager
def explain_lookup(point: ExtensionPoint, message: str = "{}") -> Iterator[None]:
    """Raise Unknown for the LookupError of an unknown name, and ConfigError for the ValueError of
    one that does not fit.

    message: text of the ConfigError, with {} in place of the ValueError's text
    """
    try:
        yield
    except LookupError as error:
        name, known = error.args
        own = f"name one of your own as {point.own}"
        raise Unknown(point.noun, name, known, own) from error
    except ValueError as error:
        raise ConfigError(message.format(error)) from error


@contextmanager
def report_failure(noun: str, name: str) -> Iterator[None]:
    """Raise ConfigError for whatever an extension's function raises, with the name of the extension
    and the line that raised. The project's own errors pass.
    """
    try:
        yield
    except EspalierError:
        raise
    except Exception as error:  # a foreign function can raise anything
        raise ConfigError(
            f"{noun} '{describe_name(name)}' failed {locate_failure(error)}"
        ) from error


def check_parameters(noun: str, name: str, function: Callable[..., object], *takes: str) -> None:
    """Raise ConfigError if an extension's function cannot be called with positional arguments.

    takes: what it is called with, by name
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in functions have none
        return
    try:
        signature.bind(*takes)
    except TypeError as error:
        raise ConfigError(
            f"{noun} '{describe_name(name)}' takes ({', '.join(signature.parameters)}), expected "
            f"({', '.join(takes)})"
        ) from error


def check_declares(noun: str, name: str, found: object, protocol: type) -> None:
    """Raise ConfigError if what an extension's function returned lacks members of a protocol."""
    declared = {*inspect.get_annotations(protocol), *vars(protocol)}
    public = sorted(member for member in declared if not member.startswith("_"))
    if missing := [member for member in public if not hasattr(found, member)]:
        kind = add_article(type(found).__name__)
        raise ConfigError(
            f"{noun} '{describe_name(name)}' returned {kind} without {', '.join(missing)}; "
            f"expected a {protocol.__name__}, see {protocol.__module__}"
        )
