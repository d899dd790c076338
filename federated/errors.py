"""The errors that a user can cause or meet, as one tree; `EXIT_CODES` explains the codes.

EspalierError
├── UsageError            a wrong command line
│   └── Unknown           an unknown method, model, data set, setting, ...: lists the known
├── ConfigError           an invalid setting, or a file or folder that cannot be read or written
│   ├── ArgumentError     a wrong argument of the Python API
│   ├── SettingError      a wrong setting of a run or a method
│   └── DataError         data that are missing, empty, of one class or misshapen
├── MissingExtra          a command needs packages of an extra that is not installed
├── LinkError             no broker, a broker that refuses, a low packet limit, or no store
├── FleetError            too few agents, or a run that no agent can serve
├── StoreError            a run folder that is missing, foreign, in use or damaged
├── ExportError           an exported graph that is wrong, foreign or corrupt
├── Superseded            another coordinator of the same run took over
└── WireError             a message that cannot be accepted; never ends a run
    ├── ProtocolMismatch  another protocol version
    ├── Malformed         not msgpack, an unknown kind, or fields of the wrong type
    └── Refused           well-formed, but not acceptable: shape, dtype, name, values
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from operator import attrgetter
from types import NoneType
from typing import Self

from federated.flag_and_argument_names import Spell
from federated.install_command import pip_command
from federated.safe_text import make_safe

__all__ = [
    "EXIT_CODES",
    "ArgumentError",
    "ConfigError",
    "DataError",
    "EspalierError",
    "ExportError",
    "FleetError",
    "LinkError",
    "Malformed",
    "MissingExtra",
    "ProtocolMismatch",
    "Refused",
    "SettingError",
    "StoreError",
    "Superseded",
    "Unknown",
    "UsageError",
    "WireError",
    "add_article",
    "describe_os_error",
    "describe_value",
    "explain_os_errors",
    "read_setting",
    "require_extra",
]

# what the exit code of a command means; docs/cli.md shows this table
EXIT_CODES = {
    0: "success",
    1: "any other error; the message describes it",
    2: "a wrong command line: an unknown command or flag, a missing flag, or a flag whose value is "
    "malformed; an unknown name of a method, model, submodel, ..., also in a setting (the message "
    "lists the known names, nearest first)",
    3: "an invalid setting (an unknown key or a wrong value, also from a flag or an environment "
    "variable), invalid data, or a file or folder that is missing or cannot be read or written",
    4: "an extra is not installed; the message contains the pip command",
    5: "no broker, a broker that refuses the connection, a port that is in use, a broker whose "
    "packet limit is too low, or no store at http.endpoint",
    6: "too few agents, a run that no agent can train, or an agent that was rejected",
    7: "stored state that is missing, in use, damaged or not writable: a run, a spool, the "
    "certificate authority, or downloaded releases",
    8: "a release that the broker or the run lacks; a network or release that is corrupt or "
    "unsuitable, fails its checks, or is computed incorrectly by every available runtime; a canary "
    "that is not promoted or was rolled back",
    9: "another coordinator of the same run took over",
    130: "interrupted by ctrl-C or by SIGTERM from a service manager (an agent instead leaves the "
    "run and exits with 0)",
}
LONGEST = 80  # characters of a wrong value that an error shows


class EspalierError(Exception):
    """Base of all errors.

    exit_code: exit code of a command that this error ends.
    on_command_line: its text for a command, if that differs from the text for Python.
    """

    exit_code = 1
    on_command_line = ""

    @classmethod
    def naming(cls, write: Callable[[Spell], str]) -> Self:
        """Return an error that names options: as arguments, and on the command line as flags.

        write: returns its text, given how to spell an `Option`.
        """
        error = cls(write(attrgetter("argument")))
        error.on_command_line = write(attrgetter("flag"))
        return error


class UsageError(EspalierError):
    exit_code = 2


LISTED = 100  # most names that an error lists


class Unknown(UsageError):
    """An unknown name. remedy: a hint other than to correct the name."""

    def __init__(self, what: str, name: str, known: Iterable[str], remedy: str = "") -> None:
        self.name = name
        names = sorted(known)
        close = get_close_matches(name, names, n=1)
        guess = f" did you mean {close[0]}?" if close else ""
        hint = f"; {remedy}" if remedy else ""
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        shown = f"known: {', '.join(names[:LISTED])}{more}" if names else "none is known"
        super().__init__(f"unknown {what} '{name}';{guess} {shown}{hint}")


class ConfigError(EspalierError):
    exit_code = 3


class ArgumentError(ConfigError):
    """A wrong argument of the Python API. argument: its name."""

    def __init__(self, argument: str, expected: str, found: object) -> None:
        self.argument = argument
        super().__init__(f"{argument}: expected {expected}, found {describe_value(found)}")


class SettingError(ConfigError):
    """A wrong setting. key: its path, such as `fleet.deadline`. problem: names it and says what is
    wrong. source: of the value, such as a file or an environment variable; empty: not named.
    """

    def __init__(self, source: str, key: str, problem: str) -> None:
        self.key, self.problem = key, problem
        super().__init__(f"{source}: {problem}" if source else problem)


class DataError(ConfigError):
    pass


class MissingExtra(EspalierError):
    """A package of an extra is missing; the message contains the pip command."""

    exit_code = 4

    def __init__(self, command: str, extra: str, package: str, otherwise: str = "") -> None:
        """otherwise: another way to install the package."""
        self.command, self.extra, self.package = command, extra, package
        super().__init__(
            f"{command} needs the package '{package}': {pip_command(extra)}"
            + (f", or {otherwise}" if otherwise else "")
        )


@contextmanager
def require_extra(command: str, extra: str, package: str = "") -> Iterator[None]:
    """Turn the error for a missing module into one that names the extra to install.

    package: name of the package if it differs from that of the module.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = package or (error.name or "").partition(".")[0]
        raise MissingExtra(command, extra, missing) from error


@contextmanager
def explain_os_errors(
    kind: type[EspalierError], what: str, *also: type[Exception], remedy: str = ""
) -> Iterator[None]:
    """Turn an error of the operating system into one of this kind that says what failed, why, and
    what to do.

    also: other types of errors to turn.
    """
    types: tuple[type[Exception], ...] = (OSError, *also)
    try:
        yield
    except types as error:
        why = describe_os_error(error) if isinstance(error, OSError) else error
        raise kind(f"{what}: {why}" + (f"; {remedy}" if remedy else "")) from error


@contextmanager
def read_setting() -> Iterator[None]:
    """Turn the error for a malformed flag into that for a setting of a run. An unknown name keeps
    its error.
    """
    try:
        yield
    except Unknown:
        raise
    except UsageError as error:
        raise ConfigError(str(error)) from error


def describe_os_error(error: OSError) -> str:
    """Return the reason of an error of the operating system. One that a command meets when it
    creates a folder where a file is has a reason that does not mislead.
    """
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file is in place of this folder, or of one above it"
    return error.strerror or str(error)


def describe_value(value: object) -> str:
    """Return a plain value, or a list of them, as Python spells it; the type of any other, and the
    shape of an array.
    """
    if is_plain(value) or (isinstance(value, tuple | list) and all(map(is_plain, value))):
        text = repr(value)
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"an array of {value.dtype} {list(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return add_article(type(value).__name__)


def is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str | NoneType)


def add_article(noun: str) -> str:
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


class LinkError(EspalierError):
    exit_code = 5


class FleetError(EspalierError):
    exit_code = 6


class StoreError(EspalierError):
    exit_code = 7


class ExportError(EspalierError):
    exit_code = 8


class Superseded(EspalierError):
    exit_code = 9


class WireError(EspalierError):
    """A message that cannot be accepted. The receiver logs the reason, answers the sender and
    continues. The reason is cut and made safe to show, because it may quote the message.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(make_safe(reason))


class ProtocolMismatch(WireError):
    pass


class Malformed(WireError):
    pass


class Refused(WireError):
    pass
