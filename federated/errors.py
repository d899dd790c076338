"""The errors that a user can cause or meet, as one tree.

EspalierError                      exit  meaning
├── UsageError                      2    an unknown name or flag (the same code as click's)
│   └── Unknown                     2    an unknown method, model, data set, ...: lists the known
├── ConfigError                     3    an invalid configuration or data set
│   └── DataError                   3    data that is missing, empty, of one class or misshapen
├── MissingExtra                    4    a command needs packages of an extra that is not installed
├── LinkError                       5    no broker, a broker that refuses, or a low packet limit
├── FleetError                      6    too few agents, or a run that no agent can serve
├── StoreError                      7    a run directory that is missing, foreign, in use or damaged
├── ExportError                     8    an exported graph that is wrong, foreign or corrupt
├── Superseded                      9    another coordinator of the same run took over
└── WireError                       -    a message that cannot be accepted; never ends a run
    ├── ProtocolMismatch            -    another protocol version
    ├── Malformed                   -    not msgpack, an unknown kind, or fields of the wrong type
    └── Refused                     -    well-formed, but not acceptable: shape, dtype, name, values
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from federated.installation import pip_command
from federated.safe_text import make_safe

__all__ = [
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
    "StoreError",
    "Superseded",
    "Unknown",
    "UsageError",
    "WireError",
    "describe_os_error",
    "explain_os_errors",
    "require_extra",
]


class EspalierError(Exception):
    """Base of all errors. exit_code: exit code of a command that this error ends."""

    exit_code = 1


class UsageError(EspalierError):
    exit_code = 2


class Unknown(UsageError):
    """An unknown name. remedy: a hint other than to correct the name."""

    def __init__(self, what: str, name: str, known: Iterable[str], remedy: str = "") -> None:
        self.name = name
        names = sorted(known)
        close = get_close_matches(name, names, n=1)
        guess = f" did you mean {close[0]}?" if close else ""
        hint = f"; {remedy}" if remedy else ""
        super().__init__(f"unknown {what} '{name}';{guess} known: {', '.join(names)}{hint}")


class ConfigError(EspalierError):
    exit_code = 3


class DataError(ConfigError):
    pass


class MissingExtra(EspalierError):
    """A package of an extra is missing; the message contains the pip command."""

    exit_code = 4

    def __init__(self, command: str, extra: str, package: str) -> None:
        self.command, self.extra, self.package = command, extra, package
        super().__init__(f"{command} needs the package '{package}': {pip_command(extra)}")


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


def describe_os_error(error: OSError) -> str:
    """Return the reason of an error of the operating system. One that a command meets when it
    creates a folder where a file is has a reason that does not mislead.
    """
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file is in place of this folder, or of one above it"
    return error.strerror or str(error)


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
