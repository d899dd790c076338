"""Look up an extension by name: built in, "module:attribute", or the entry point of an installed
package.

A name that the owner of this machine wrote may import code: `lookup`. A name from a message of
another machine must not: look it up in the result of `load_all`.

`models` does not use the project's errors: an unknown name raises `LookupError(name, known names)`,
and a failed import raises ValueError. `federated.runtime.extension_errors.find` turns both into the
project's own errors.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from models.given_objects import describe_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

__all__ = [
    "ExtensionPoint",
    "find_failed_module",
    "import_member",
    "is_library",
    "known_names",
    "list_required_parameters",
    "load_all",
    "locate_failure",
    "lookup",
]

log = logging.getLogger(__name__)

T = TypeVar("T")
MODELS = Path(__file__).parent
VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}

# group -> "module:attribute" -> member, for members that `lookup` found in this process
NAMED: dict[str, dict[str, Any]] = {}

FOREIGN_MODULES = set[str]()  # names of the modules from which this process loaded extensions


@dataclass(frozen=True)
class ExtensionPoint:
    """One extension point.

    noun: name of a member in messages, such as "robust rule".
    group: entry points with which other packages add members, such as "espalier.rules".
    member: the type that each member is an instance of; None: each is a function.
    """

    noun: str
    group: str
    member: type | None = None

    @property
    def own(self) -> str:
        """Format in which users name their own members."""
        return "module:function" if self.member is None else "module:attribute"


def lookup(point: ExtensionPoint, name: str, known: Mapping[str, T]) -> T:
    """Return the member with a name that the owner of this machine wrote: a built-in one,
    "module:attribute", or one of an installed package. `load_all` also returns a
    "module:attribute" that was looked up before.

    Raises LookupError(name, known names) for an unknown name, ValueError for a member that cannot
    be imported or has the wrong type.
    """
    if name in known:
        return known[name]
    found: T
    if ":" in name:
        try:
            found = import_member(name, point.member)
        except ValueError as error:
            raise ValueError(f"{point.noun} {error}") from error
        NAMED.setdefault(point.group, {})[name] = found
        return found
    entries = [entry for entry in entry_points(point) if entry.name == name]
    if not entries:
        raise LookupError(name, known_names(point, known))
    if len(entries) > 1:
        raise ValueError(
            f"{point.noun} '{name}' is in {len(entries)} packages: "
            f"{', '.join(sorted(map(package, entries)))}: uninstall all but one, or name it as "
            f"module:attribute, such as {entries[0].value}"
        )
    FOREIGN_MODULES.add(entries[0].module)
    try:
        found = check_member(entries[0].load(), point.member)
    except Exception as error:  # whatever a foreign module raises
        raise ValueError(
            f"{point.noun} '{name}' of the package {package(entries[0])} cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
    return found


def load_all(point: ExtensionPoint, known: Mapping[str, T]) -> dict[str, T]:
    """Return all members by name: the built-in ones, those that the owner of this machine named,
    and those of installed packages. Names from messages may be looked up among these.

    The packages are loaded regardless of the names in messages. One that cannot be loaded is
    skipped, with a warning.
    """
    return {**load_packaged(point), **NAMED.get(point.group, {}), **known}


@cache
def load_packaged(point: ExtensionPoint) -> dict[str, Any]:
    """Return the members of installed packages, loaded once."""
    found: dict[str, Any] = {}
    for name in known_names(point, {}):
        try:
            found[name] = lookup(point, name, {})
        except ValueError as error:
            log.warning("skipped: %s", error)
    return found


def known_names(point: ExtensionPoint, known: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the built-in members, then of those in installed packages, each once.
    Import nothing.
    """
    added = sorted(entry.name for entry in entry_points(point))
    return tuple(dict.fromkeys((*known, *added)))


def entry_points(point: ExtensionPoint) -> EntryPoints:
    """Return the entry points of installed packages."""
    from importlib import metadata  # not at the top: many commands look up no name, and it is slow

    return metadata.entry_points(group=point.group)


def import_member(name: str, member: type | None = None) -> Any:
    """Import and return "module:attribute"; the module may be in the current folder.

    member: the expected type; None: a function. Raises ValueError if the import fails or the type
    differs.
    """
    shown = f"'{describe_name(name)}'"
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise ValueError(f"{shown} cannot be imported: expected module:attribute")
    if module.startswith(".") or module.endswith(".py") or set(module) & {"/", "\\"}:
        raise ValueError(f"{shown} cannot be imported: {_explain_path(Path(module), attribute)}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        # a command that pip installed does not look in the current folder
        sys.path.insert(0, str(Path.cwd()))
    FOREIGN_MODULES.add(module)
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ValueError(
                f"{shown} cannot be imported: ModuleNotFoundError: {error}; install it"
            ) from error
        raise ValueError(
            f"{shown} cannot be imported: ModuleNotFoundError: no module '{error.name}' in the "
            "current folder or among the installed packages; install its package, or start in the "
            "folder of its file"
        ) from error
    except Exception as error:  # a foreign module can raise anything
        where = locate_failure(error)
        raise ValueError(f"{shown} cannot be imported: it failed {where}") from error
    try:
        return check_member(getattr(imported, attribute), member)
    except AttributeError as error:
        raise ValueError(f"{shown} cannot be imported: {error}") from error
    except TypeError as error:
        raise ValueError(f"{shown} is {error}") from error


def _explain_path(path: Path, attribute: str) -> str:
    """Return why the path of a file is no module, and what to write in its place."""
    file = path if path.suffix == ".py" else path.with_name(f"{path.name}.py")
    if not file.is_file():
        return (
            f"the file {file} does not exist; expected module:attribute, such as net:{attribute} "
            "for net.py in the current folder"
        )
    return (
        f"expected the name of a module, found a path; write {file.stem}:{attribute} and start in "
        f"the folder {file.parent}"
    )


def check_member(found: Any, member: type | None) -> Any:
    """Return the value if it is a member; raise TypeError if not."""
    if callable(found) if member is None else isinstance(found, member):
        return found
    expected = "function" if member is None else member.__name__
    raise TypeError(f"a value of type {type(found).__name__}; expected a {expected}")


def find_failed_module(error: Exception) -> tuple[str, str]:
    """Return the innermost module of an extension that an error passed through, and the module of
    the same package from which the extension was loaded; empty names if there is none.
    """
    loaded = {name.partition(".")[0]: name for name in FOREIGN_MODULES}
    loaded.pop(__name__.partition(".")[0], None)  # `models.given_objects`
    names = [
        frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    for name in reversed(names):
        if name in FOREIGN_MODULES:
            return name, name
        if extension := loaded.get(name.partition(".")[0]):
            return name, extension
    return "", ""


def locate_failure(error: Exception) -> str:
    """Return where the user's code raised an error, and the error: "at FILE, line N: TYPE: TEXT".

    Lines of Python and of installed packages are skipped. The text names no folder, since it may
    leave the device.
    """
    text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    if isinstance(error, SyntaxError):
        name = Path(error.filename or "").name
        return f"at {name}, line {error.lineno}: SyntaxError: {error.msg}"
    places = traceback.extract_tb(error.__traceback__)
    own = [one for one in places if not is_library(one.filename)]
    place = (own or places)[-1]
    return f"at {Path(place.filename).name}, line {place.lineno}: {text}"


@cache
def is_library(file: str) -> bool:
    """Return True for a file of Python, of an installed package, or of `models`, whose tracer
    torch.fx calls below the user's line.
    """
    libraries = map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))
    return file.startswith((*libraries, f"{MODELS}{os.sep}", "<frozen"))


def list_required_parameters(function: Callable[..., object]) -> list[str]:
    """Return the names of a function's parameters that have no default."""
    return [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind not in VARIADIC
    ]


def package(entry: EntryPoint) -> str:
    """Return the name of the package of an entry point."""
    return entry.dist.name if entry.dist else "(unnamed)"
